"""The families of benches/gpu that are slowest beside the best of the others, the worst first, one
a line.

    python3 tests/gpu/worst.py ROWS [10]      # lines of JSON as they are in `results/rows.txt`
"""

import json
import sys

ours, others = {}, {}
for line in open(sys.argv[1]):
    if not line.startswith('{"name": "GPU\'s time: '):
        continue
    row = json.loads(line)
    name, value = row["name"].removeprefix("GPU's time: "), row["value"]
    if row["who"] == "futensor":
        ours[name] = value
    elif row["who"] != "the bytes' floor":
        others[name] = min(value, others.get(name, value))
# Those without a peer come last, in their order.
ratio = {name: value / others[name] if name in others else 0 for name, value in ours.items()}
count = int(sys.argv[2]) if len(sys.argv) > 2 else 10
for name in sorted(ours, key=lambda name: -ratio[name])[:count]:
    print(name)
