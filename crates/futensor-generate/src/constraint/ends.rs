//! Whether there is any text of a schema: one that refers to itself may ask for what never ends.

use serde_json::Value;
use std::collections::HashSet;

/// Parts of schemas that are looked at, at most: what is larger is taken as it is.
const LOOKS_MAX: usize = 100_000;

/// What is known of a schema's parts.
struct Search<'a> {
    root: &'a Value,
    /// References that were seen to end, and those whose end is being looked for.
    end: HashSet<&'a str>,
    within: Vec<&'a str>,
    looks: usize,
}

/// False where every value of a schema has another one of the same kind in it.
pub fn ends(schema: &Value) -> bool {
    Search { root: schema, end: HashSet::new(), within: vec!["#"], looks: 0 }.ends(schema)
}

impl<'a> Search<'a> {
    fn ends(&mut self, schema: &'a Value) -> bool {
        self.looks += 1;
        if self.looks > LOOKS_MAX {
            return true;
        }
        let list = |name: &str| schema[name].as_array().map_or(&[][..], |all| all);
        if let Some(to) = schema["$ref"].as_str()
            && !self.referred(to)
        {
            return false;
        }
        if !list("allOf").iter().all(|part| self.ends(part)) {
            return false;
        }
        for name in ["anyOf", "oneOf"] {
            let parts = list(name);
            if !parts.is_empty() && !parts.iter().any(|part| self.ends(part)) {
                return false;
            }
        }
        match schema["type"].as_str() {
            Some("object") => list("required").iter().filter_map(Value::as_str).all(|name| {
                schema["properties"].get(name).is_none_or(|property| self.ends(property))
            }),
            Some("array") if schema["minItems"].as_f64().is_some_and(|n| n >= 1.0) => {
                let first = list("prefixItems").first().or(schema.get("items"));
                first.is_none_or(|item| self.ends(item))
            }
            _ => true,
        }
    }

    /// Whether what this refers to has an end: it has none by way of itself. What is not found here
    /// is the library's to judge.
    fn referred(&mut self, to: &'a str) -> bool {
        if self.within.contains(&to) {
            return false;
        }
        let Some(part) = to.strip_prefix('#').and_then(|path| self.root.pointer(path)) else {
            return true;
        };
        self.within.push(to);
        let ends = self.end.contains(to) || self.ends(part);
        self.within.pop();
        if ends {
            self.end.insert(to);
        }
        ends
    }
}
