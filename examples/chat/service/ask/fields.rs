//! The members of a body, each taken by its name; what is left over in the end is ignored where it
//! changes nothing, and refused where it may.

use super::Refusal;
use serde_json::{Map, Value};

/// Changes no answer: labels, hints for a cache, and what others do with it afterwards.
const LABELS: [&str; 17] = [
    "cache_prompt",
    "id_slot",
    "keep_alive",
    "metadata",
    "parallel_tool_calls",
    "prediction",
    "priority",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "session_id",
    "store",
    "timings_per_token",
    "return_progress",
    "user",
];

/// See the module.
pub struct Fields(Map<String, Value>);

fn wrong(name: &str, what: &str, value: &Value) -> Refusal {
    let mut value = value.to_string();
    if value.chars().count() > 60 {
        value = value.chars().take(60).chain("...".chars()).collect();
    }
    Refusal::of_request(format!("{name} is {what}, not {value}"), name).code("invalid_type")
}

impl Fields {
    /// Of a body. A member that is null is none.
    pub fn read(bytes: &[u8]) -> Result<Fields, Refusal> {
        let body = serde_json::from_slice(bytes);
        Fields::of(body.map_err(|e| Refusal::new(400, format!("the body is no JSON: {e}")))?)
            .ok_or_else(|| Refusal::new(400, "the body is no object"))
    }

    /// Of an object's members.
    pub fn of(value: Value) -> Option<Fields> {
        let Value::Object(mut members) = value else { return None };
        members.retain(|_, value| !value.is_null());
        Some(Fields(members))
    }

    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    /// The first of these names that there is.
    pub fn number(&mut self, names: &[&str]) -> Result<Option<f32>, Refusal> {
        let Some((name, value)) = self.one_of(names) else { return Ok(None) };
        // One that is too large for this type is infinite, which no option may be.
        value.as_f64().map(|x| Some(x as f32)).ok_or_else(|| wrong(&name, "a number", &value))
    }

    pub fn whole(&mut self, names: &[&str]) -> Result<Option<i64>, Refusal> {
        let Some((name, value)) = self.one_of(names) else { return Ok(None) };
        // Some write 20.0.
        let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 9e15).then_some(x as i64);
        let number = value.as_i64().or_else(|| value.as_f64().and_then(whole));
        number.map(Some).ok_or_else(|| wrong(&name, "a whole number", &value))
    }

    /// A number of things: -1 is no limit, as is none.
    pub fn count(&mut self, names: &[&str]) -> Result<Option<usize>, Refusal> {
        let name = names.iter().find(|name| self.0.contains_key(**name)).copied();
        match self.whole(names)? {
            None | Some(-1) => Ok(None),
            Some(n) => usize::try_from(n)
                .map(Some)
                .map_err(|_| wrong(name.unwrap_or_default(), "a number of things", &n.into())),
        }
    }

    pub fn flag(&mut self, name: &str) -> Result<bool, Refusal> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(wrong(name, "true or false", &other)),
        }
    }

    pub fn text(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(name, "a text", &other)),
        }
    }

    /// One text, or several.
    pub fn texts(&mut self, name: &str) -> Result<Vec<String>, Refusal> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::String(one)) => Ok(vec![one]),
            Some(Value::Array(all)) if all.iter().all(Value::is_string) => {
                Ok(all.iter().filter_map(Value::as_str).map(String::from).collect())
            }
            Some(other) => Err(wrong(name, "a text, or a list of them", &other)),
        }
    }

    pub fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(all)) => Ok(Some(all)),
            Some(other) => Err(wrong(name, "a list", &other)),
        }
    }

    pub fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(members)) => Ok(Some(members)),
            Some(other) => Err(wrong(name, "an object", &other)),
        }
    }

    /// Refuses what is left over and may mean something.
    pub fn end(self) -> Result<(), Refusal> {
        let left = self.0.into_iter().find(|(name, value)| {
            let empty = match value {
                Value::Bool(flag) => !flag,
                Value::String(text) => text.is_empty(),
                Value::Array(items) => items.is_empty(),
                Value::Object(members) => members.is_empty(),
                _ => false,
            };
            !empty && !LABELS.contains(&&name[..])
        });
        match left {
            None => Ok(()),
            Some((name, _)) => {
                let shown: String = name.chars().take(60).collect();
                let text = format!("unknown field `{shown}`: it may change the answer");
                Err(Refusal::of_request(text, &shown).code("unknown_parameter"))
            }
        }
    }

    fn one_of(&mut self, names: &[&str]) -> Option<(String, Value)> {
        let name = names.iter().find(|name| self.0.contains_key(**name))?;
        self.0.remove_entry(*name)
    }
}
