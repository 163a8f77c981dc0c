"""Lines of JSON ({name, who, value, unit}) as one Markdown table: a row a question, a column each
who answers."""

import json
import sys

rows = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
names = list(dict.fromkeys((row["name"], row["unit"]) for row in rows))
who = list(dict.fromkeys(row["who"] for row in rows))
values = {(row["name"], row["who"]): row["value"] for row in rows}
print("| what | unit | " + " | ".join(who) + " |")
print("|---" * (len(who) + 2) + "|")
for name, unit in names:
    cells = [f"{values[name, w]:.4g}" if (name, w) in values else "-" for w in who]
    print(f"| {name} | {unit} | " + " | ".join(cells) + " |")
