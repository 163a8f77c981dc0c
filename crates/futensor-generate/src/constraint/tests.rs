//! Constraints: which tokens a grammar lets through, and what a schema or grammar may cost.

use super::guide::Guide;
use super::*;
use crate::tokenizer::testing::vocabulary;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn grammars() -> Arc<Grammars> {
    let tokenizer = Arc::new(vocabulary().tokenizer().unwrap());
    let count = tokenizer.len();
    Grammars::new(tokenizer, count)
}

fn compile(grammars: &Arc<Grammars>, constraint: Constraint) -> Result<Arc<Grammar>> {
    let (tell, told) = std::sync::mpsc::channel();
    grammars.compile(constraint.into(), move |grammar| tell.send(grammar).unwrap());
    told.recv_timeout(Duration::from_secs(60)).expect("somebody tells")
}

/// What comes of always taking the allowed token that this prefers.
fn follow(constraint: Constraint, prefer: impl Fn(&[u32]) -> u32) -> String {
    let tokenizer = vocabulary().tokenizer().unwrap();
    let (mut guide, mut mask): (Guide, _) = compile(&grammars(), constraint).unwrap().begin();
    let mut text = Vec::new();
    for _ in 0..200 {
        let allowed: Vec<u32> = (0..tokenizer.len() as u32)
            .filter(|&t| mask[t as usize / 32] >> (t % 32) & 1 == 1)
            .collect();
        let token = prefer(&allowed);
        assert!(allowed.contains(&token), "some token is allowed");
        if tokenizer.ends().contains(&token) {
            break;
        }
        text.push(token);
        if guide.accept(token).unwrap() {
            break;
        }
        mask = guide.mask().unwrap();
    }
    tokenizer.decode(&text)
}

#[test]
fn a_text_that_follows_a_grammar_is_of_it() {
    let last = |allowed: &[u32]| *allowed.last().unwrap();
    let first = |allowed: &[u32]| allowed[0];
    assert_eq!(follow(Constraint::Regex("(hello|bye) world[!?]".into()), last), "hello world?");
    assert_eq!(follow(Constraint::Regex("(hello|bye) world[!?]".into()), first), "bye world!");
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } },
        "required": ["a"], "additionalProperties": false });
    let text = follow(Constraint::JsonSchema(schema), last);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(value["a"] == 1 || value["a"] == 2, "{text}");
    // In the schema's order, not the alphabet's.
    let schema = json!({ "type": "object",
        "properties": { "b": { "enum": [1] }, "a": { "enum": [1] } },
        "required": ["a", "b"], "additionalProperties": false });
    let text = follow(Constraint::JsonSchema(schema), last);
    assert!(text.find("\"b\"").unwrap() < text.find("\"a\"").unwrap(), "{text}");
}

/// Somebody who likes one kind of byte best, as a greedy model does, comes to an end all the same.
#[test]
fn white_space_and_digits_do_not_go_on_for_ever() {
    let tokenizer = vocabulary().tokenizer().unwrap();
    let first = |token: &u32| tokenizer.bytes(*token).first().copied().unwrap_or(0);
    let prefers = |liked: fn(u8) -> bool, then: &'static [u8]| {
        move |allowed: &[u32]| {
            let likes = allowed.iter().find(|token| liked(first(token)));
            let closes = || allowed.iter().find(|token| then.contains(&first(token)));
            *likes.or_else(closes).unwrap_or(&allowed[0])
        }
    };
    let list = json!({ "type": "array", "items": { "type": "integer" }, "maxItems": 2 });
    for schema in [list, json!({ "type": "number" }), json!(true)] {
        let schema = || Constraint::JsonSchema(schema.clone());
        let text = follow(schema(), prefers(|b| b.is_ascii_digit(), b"[,]}"));
        let runs = text.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap();
        assert!((1..=24).contains(&runs), "{text:?}");
        let text = follow(schema(), prefers(|b| b == b'\n' || b == b' ', b"]0"));
        let runs = text.split(|c: char| !c.is_whitespace()).map(str::len).max().unwrap();
        assert!(runs <= 33, "{text:?}");
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text:?}");
    }
    // A text is not a number, however many digits it has.
    let text = follow(
        Constraint::JsonSchema(json!({ "type": "string", "pattern": "^[0-9]{40}$" })),
        |allowed| allowed[0],
    );
    assert_eq!(text.len(), 42, "{text:?}");
}

#[test]
fn json_within_a_text_is_of_its_schema() {
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } },
        "required": ["a"], "additionalProperties": false });
    let tagged = |free| {
        let (open, close) = ("<call>\n".into(), "\n</call>".into());
        let calls = vec![(String::new(), schema.clone())];
        Constraint::Tagged(Tagged { open, calls, close, free })
    };
    let text = follow(tagged(false), |allowed| *allowed.last().unwrap());
    let json = text.strip_prefix("<call>\n").unwrap().strip_suffix("\n</call>").unwrap();
    let value: Value = serde_json::from_str(json).unwrap();
    assert!(value["a"] == 1 || value["a"] == 2, "{text}");
    // Where it may come or not, whatever begins as one goes on as one.
    let tokenizer = vocabulary().tokenizer().unwrap();
    let allowed = |constraint: Constraint, text: &str| {
        let (mut guide, mut mask) = compile(&grammars(), constraint).unwrap().begin();
        for &byte in text.as_bytes() {
            let is = |t: &u32| tokenizer.bytes(*t) == [byte];
            let token = (0..tokenizer.len() as u32).find(is).expect("each byte is a token");
            if mask[token as usize / 32] >> (token % 32) & 1 == 0 {
                return false;
            }
            guide.accept(token).unwrap();
            mask = guide.mask().unwrap();
        }
        true
    };
    let allows = |text: &str| allowed(tagged(true), text);
    for right in [
        "nothing <b> of it\n",
        "so: <call>\n{\"a\":1}\n</call> and <call>\n{\"a\": 2}\n</call>",
        "<call>{",
    ] {
        assert!(allows(right), "{right}");
    }
    for wrong in ["<call>\n{\"b", "so: <call>\n[", "<call>\n{\"a\":1}\n</call>\n<call>\n{\"a\":3"] {
        assert!(!allows(wrong), "{wrong}");
    }
    // By names, each with a schema of its own.
    let of = |n: i32| json!({ "enum": [n] });
    let calls = vec![("one[".into(), of(1)), ("two[".into(), of(2))];
    let named = Tagged { open: "<call>".into(), calls, close: String::new(), free: true };
    for (text, right) in [
        ("a<call>one[1", true),
        ("<call>two[ 2<call>one[1", true),
        ("<call>two[1", false),
        ("<call>three[", false),
    ] {
        assert_eq!(allowed(Constraint::Tagged(named.clone()), text), right, "{text}");
    }
}

/// A schema in which this many lists are within each other.
fn nested(depth: usize) -> Value {
    (0..depth)
        .fold(json!({ "type": "string" }), |inner, _| json!({ "type": "array", "items": inner }))
}

#[test]
fn what_is_no_grammar_is_the_requests_error() {
    let grammars = grammars();
    let names: Vec<String> = (0..40_000).map(|k| format!("name{k}")).collect();
    let wide: serde_json::Map<_, _> = (0..2049).map(|k| (k.to_string(), json!(true))).collect();
    for (wrong, words) in [
        (Constraint::Regex("(".into()), "the constraint"),
        (Constraint::JsonSchema(json!({ "type": "no such" })), "the constraint"),
        (Constraint::Regex("a".repeat(8193)), "more than 8192 bytes"),
        (Constraint::JsonSchema(json!({ "enum": names })), "more than 131072 bytes"),
        (Constraint::JsonSchema(nested(64)), "nested more than 64 deep"),
        (Constraint::JsonSchema(nested(2_000)), "nested more than 64 deep"),
        (Constraint::JsonSchema(json!({ "properties": wide })), "an object of 2049 members"),
        (Constraint::JsonSchema(json!({ "$ref": "#" })), "refers to itself without end"),
        (
            Constraint::JsonSchema(json!({ "$ref": "#/$defs/a",
                "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } })),
            "refers to itself without end",
        ),
        (
            Constraint::JsonSchema(json!({ "$ref": "#/$defs/a", "$defs": { "a": {
                "type": "object", "properties": { "a": { "$ref": "#/$defs/a" } },
                "required": ["a"] } } })),
            "refers to itself without end",
        ),
        (
            Constraint::JsonSchema(json!({ "type": "number", "multipleOf": 100.03 })),
            "multiples of 100.03",
        ),
    ] {
        for _ in 0..2 {
            let error = compile(&grammars, wrong.clone()).err().unwrap();
            assert!(error.is_request() && error.to_string().contains(words), "{error}");
            assert!(error.to_string().len() < 250, "{error}");
        }
    }
    let tree = json!({ "$ref": "#/$defs/a", "$defs": { "a": { "type": "object",
        "properties": { "a": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/a" }] } },
        "required": ["a"] } } });
    for right in [nested(60), json!({ "type": "number", "multipleOf": 0.01 }), tree] {
        assert!(compile(&grammars, Constraint::JsonSchema(right)).is_ok());
    }
}

#[test]
fn a_text_is_compiled_once_and_the_least_wanted_is_forgotten() {
    let grammars = grammars();
    let of = |k: usize| compile(&grammars, Constraint::Regex(format!("a{k}"))).unwrap();
    let (first, second) = (of(0), of(1));
    for k in 2..70 {
        // It stays known as long as it is wanted.
        assert!(Arc::ptr_eq(&of(0), &first));
        of(k);
    }
    assert!(Arc::ptr_eq(&of(69), &of(69)) && !Arc::ptr_eq(&of(1), &second));
    // The same text is another constraint as a schema.
    assert!(compile(&grammars, Constraint::JsonSchema(json!({ "const": "a0" }))).is_ok());
}

#[test]
fn random_expressions_and_schemas_end_soon_with_a_grammar_or_an_error() {
    let seeds = match std::env::var("FUTENSOR_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).unwrap(),
        Err(_) => 0..60u64,
    };
    let grammars = grammars();
    for seed in seeds {
        let mut state = seed;
        let mut pick = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let pieces = [
            "a", "[^b]", ".*", "(", ")", "|", "{3}", "{0,40}", "+", "?", "\\d", "/", "\n", "\"",
            "é", "&", "~",
        ];
        let regex: String =
            (0..1 + pick(30)).map(|_| pieces[pick(pieces.len() as u64) as usize]).collect();
        let constraint = if pick(2) == 0 {
            Constraint::Regex(regex)
        } else {
            Constraint::JsonSchema(schema(&mut pick, 5))
        };
        let begin = Instant::now();
        let compiled = compile(&grammars, constraint.clone());
        assert!(compiled.err().is_none_or(|e| e.is_request()), "FUTENSOR_SEED={seed}");
        assert!(begin.elapsed() < Duration::from_secs(20), "FUTENSOR_SEED={seed}: {constraint:?}");
    }
}

/// Of keywords that like each other or not, with references that may go in circles.
fn schema(pick: &mut impl FnMut(u64) -> u64, depth: usize) -> Value {
    let mut all = serde_json::Map::new();
    let inner = |pick: &mut dyn FnMut(u64) -> u64| {
        let mut pick = pick;
        if depth == 0 { json!(true) } else { schema(&mut pick, depth - 1) }
    };
    for _ in 0..1 + pick(3) {
        let (key, value) = match pick(12) {
            0 => (
                "type",
                json!(["object", "array", "string", "integer", "nothing"][pick(5) as usize]),
            ),
            1 => ("properties", json!({ "a": inner(pick), "b": inner(pick) })),
            2 => ("items", inner(pick)),
            3 => {
                ("$ref", json!(["#", "#/$defs/x", "#/$defs/y", "#/properties/a"][pick(4) as usize]))
            }
            4 => ("$defs", json!({ "x": inner(pick), "y": { "$ref": "#/$defs/x" } })),
            5 => ("allOf", json!([inner(pick), inner(pick)])),
            6 => ("anyOf", json!([inner(pick), inner(pick)])),
            7 => ("oneOf", json!([inner(pick), inner(pick)])),
            8 => ("pattern", json!(["^a*$", "(", "[a-z]{1,300}"][pick(3) as usize])),
            9 => ("minItems", json!(pick(2_000_000_000))),
            10 => ("minLength", json!(pick(100_000))),
            _ => ("patternProperties", json!({ "^x.*y": inner(pick) })),
        };
        all.insert(key.into(), value);
    }
    Value::Object(all)
}
