//! Constraints as grammars over a model's tokens: compiled by helpers, within limits, and known by
//! their text from then on.

use super::ends::ends;
use super::guide::Guide;
use super::numbers::Numbers;
use super::{Constraint, Tagged};
use crate::error::{Error, Result};
use crate::helpers::{Helpers, Work};
use crate::lock::lock;
use crate::tokenizer::Tokenizer;
use futures_channel::oneshot;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock};
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// So many are compiled at the same time; others wait.
const AT_A_TIME: usize = 4;
/// White space between two words of JSON.
const WHITE: &str = r"\n?[\x20\x09]{1,32}|\n";
/// Characters of an error of the library's at most: it may tell of the whole grammar.
const ERROR_MAX: usize = 200;
/// So many texts are known at most: the one that was wanted least lately is forgotten.
const KNOWN_MAX: usize = 64;

fn compilers() -> &'static Helpers {
    static COMPILERS: OnceLock<Helpers> = OnceLock::new();
    COMPILERS.get_or_init(|| Helpers::new(AT_A_TIME))
}

/// As long as this is there, nothing is compiled.
#[cfg(test)]
pub fn hold_compilers() -> impl Sized {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = lock(&ONE);
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let (held, (tell, told)) = (Arc::new(Mutex::new(held)), std::sync::mpsc::channel());
    for _ in 0..AT_A_TIME {
        let (held, tell) = (held.clone(), tell.clone());
        compilers().push(move || {
            tell.send(()).expect("somebody waits");
            let _ = lock(&held).recv();
        });
    }
    (0..AT_A_TIME).for_each(|_| told.recv().expect("each begins"));
    (let_go, alone)
}

/// Work on one grammar at most, in units of the library's: by its figures some 20 ms to compile,
/// some 15 ms a token, and 100 MB of states.
fn limits(limits: &mut ParserLimits) {
    limits.max_lexer_states = 50_000;
    // Whoever reads an error knows his grammar.
    limits.verbose_errors = false;
}

/// A constraint that was compiled, with what it allows first.
pub struct Grammar {
    guide: Mutex<Guide>,
    first: Vec<u32>,
}

impl Grammar {
    /// What guides one answer, and what it may begin with.
    pub fn begin(&self) -> (Guide, Vec<u32>) {
        (lock(&self.guide).deep_clone(), self.first.clone())
    }

    /// As long as this is there, nobody begins.
    #[cfg(test)]
    pub fn hold(&self) -> std::sync::MutexGuard<'_, impl Sized> {
        lock(&self.guide)
    }
}

/// A constraint's kind and text.
type Key = (u8, String);

/// Is told of the grammar. One that is dropped untold tells of a panic.
struct Tell(Option<Box<dyn FnOnce(Result<Arc<Grammar>>) + Send>>);

impl Tell {
    fn say(mut self, grammar: Result<Arc<Grammar>>) {
        if let Some(tell) = self.0.take() {
            tell(grammar);
        }
    }
}

impl Drop for Tell {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell(Err(panicked()));
        }
    }
}

fn panicked() -> Error {
    Error::request("the constraint: it cannot be compiled")
}

enum Entry {
    /// It is being compiled; these want to know.
    Wanted(Vec<Tell>),
    /// What came of it, and when it was wanted last.
    Known(Result<Arc<Grammar>>, u64),
}

#[derive(Default)]
struct Known {
    entries: HashMap<Key, Entry>,
    clock: u64,
}

/// Grammars over the tokens of a model.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocabulary: usize,
    factory: OnceLock<Result<ParserFactory>>,
    known: Mutex<Known>,
}

impl Grammars {
    /// Of a tokenizer, for a model that tells so many tokens apart. Nothing is made before it is
    /// wanted.
    pub fn new(tokenizer: Arc<Tokenizer>, vocabulary: usize) -> Arc<Grammars> {
        Arc::new(Grammars {
            tokenizer,
            vocabulary,
            factory: OnceLock::new(),
            known: Mutex::default(),
        })
    }

    /// Has a helper compile a constraint, or find it, and tell.
    pub fn compile(
        self: &Arc<Self>,
        constraint: Arc<Constraint>,
        tell: impl FnOnce(Result<Arc<Grammar>>) + Send + 'static,
    ) {
        let (own, tell) = (self.clone(), Tell(Some(Box::new(tell))));
        compilers().push(move || own.seek(&constraint, tell));
    }

    /// The same as a future, for whoever wants to know whether there is such a grammar.
    pub fn prepare(self: &Arc<Self>, constraint: Arc<Constraint>) -> Work<()> {
        let (tell, told) = oneshot::channel();
        self.compile(constraint, move |grammar| drop(tell.send(grammar.map(drop))));
        Work::new(told)
    }

    fn seek(&self, constraint: &Constraint, tell: Tell) {
        let key = match constraint.text() {
            Ok(text) => match constraint {
                Constraint::Regex(_) => (0, text),
                Constraint::JsonSchema(_) => (1, text),
                Constraint::Tagged(_) => (2, text),
            },
            Err(error) => return tell.say(Err(error)),
        };
        {
            let known = &mut *lock(&self.known);
            known.clock += 1;
            match known.entries.get_mut(&key) {
                Some(Entry::Wanted(tells)) => return tells.push(tell),
                Some(Entry::Known(grammar, last)) => {
                    *last = known.clock;
                    let grammar = grammar.clone();
                    return tell.say(grammar);
                }
                None => drop(known.entries.insert(key.clone(), Entry::Wanted(vec![tell]))),
            }
        }
        let made = catch_unwind(AssertUnwindSafe(|| self.make(constraint).map(Arc::new)));
        let made = made.unwrap_or_else(|_| Err(panicked()));
        let before = {
            let known = &mut *lock(&self.known);
            known.forget_one();
            known.entries.insert(key, Entry::Known(made.clone(), known.clock))
        };
        if let Some(Entry::Wanted(tells)) = before {
            tells.into_iter().for_each(|tell| tell.say(made.clone()));
        }
    }

    fn make(&self, constraint: &Constraint) -> Result<Grammar> {
        let factory = self.factory.get_or_init(|| factory(&self.tokenizer, self.vocabulary));
        let factory = factory.as_ref().map_err(Error::clone)?;
        let grammar = match constraint {
            Constraint::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Constraint::JsonSchema(schema) => {
                TopLevelGrammar::from_json_schema(bounded(endless(schema)?))
            }
            Constraint::Tagged(tagged) => {
                for (_, schema) in &tagged.calls {
                    endless(schema)?;
                }
                TopLevelGrammar::from_lark(lark(tagged))
            }
        };
        let matcher = Matcher::new(factory.create_parser(grammar));
        let json = !matches!(constraint, Constraint::Regex(_));
        let mut guide = match matcher.get_error() {
            Some(error) => {
                return Err(Error::request(format!("the constraint: {}", brief(&error))));
            }
            None => Guide::new(matcher, json.then(|| Numbers::new(&self.tokenizer))),
        };
        // The first is by far the slowest: most of what it has to find out stays found.
        let first = guide.mask()?;
        Ok(Grammar { guide: Mutex::new(guide), first })
    }
}

/// Refuses a schema that no text is of.
fn endless(schema: &Value) -> Result<&Value> {
    match ends(schema) {
        true => Ok(schema),
        false => Err(Error::request("the constraint: the schema refers to itself without end")),
    }
}

/// The grammar of a text with JSON in it. What begins a call is taken as such wherever it stands.
fn lark(tagged: &Tagged) -> String {
    let quoted = |text: &str| json!(text).to_string();
    let close = match tagged.close.is_empty() {
        true => String::new(),
        false => quoted(&tagged.close),
    };
    let rules = match tagged.free {
        _ if tagged.open.is_empty() && tagged.free => {
            format!("start: call {close} | TEXT\nTEXT: /[^{{](.|\\n)*/")
        }
        false if tagged.open.is_empty() => format!("start: call {close}"),
        false => format!("start: {} call {close}", quoted(&tagged.open)),
        true => {
            let open: String = tagged.open.chars().map(escaped).collect();
            format!(
                "start: (begin call {close})* TEXT\nbegin[lazy]: /(.|\\n)*{open}/\n\
                 TEXT: /(.|\\n)*/"
            )
        }
    };
    let each = tagged.calls.iter().enumerate().map(|(k, (name, schema))| {
        let name = if name.is_empty() { String::new() } else { quoted(name) };
        format!("\ncall_{k}: {name} \" \"? json_{k}\njson_{k}: %json {}", bounded(schema))
    });
    let names: Vec<String> = (0..tagged.calls.len()).map(|k| format!("call_{k}")).collect();
    format!("{rules}\ncall: {}{}", names.join(" | "), each.collect::<String>())
}

/// A character as itself in a regular expression.
fn escaped(c: char) -> String {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' => c.into(),
        c => format!("\\x{{{:x}}}", c as u32),
    }
}

/// A schema whose texts have no more white space than somebody who indents writes: after many line
/// breaks another is often the likeliest token.
fn bounded(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        schema => schema.clone(),
    };
    if let Value::Object(members) = &mut schema {
        members.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITE }));
    }
    schema
}

/// The first sentence of the library's error.
fn brief(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default();
    match line.char_indices().nth(ERROR_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.into(),
    }
}

impl Known {
    /// Makes room for another.
    fn forget_one(&mut self) {
        let known = self.entries.iter().filter_map(|(key, entry)| match entry {
            Entry::Known(_, last) => Some((*last, key)),
            Entry::Wanted(_) => None,
        });
        let known: Vec<(u64, &Key)> = known.collect();
        if known.len() >= KNOWN_MAX
            && let Some((_, key)) = known.into_iter().min()
        {
            let key = key.clone();
            self.entries.remove(&key);
        }
    }
}

fn factory(tokenizer: &Tokenizer, vocabulary: usize) -> Result<ParserFactory> {
    let end = *tokenizer.ends().first().ok_or_else(|| Error::model("no token ends a text"))?;
    let word = |token: u32| match tokenizer.is_mark(token) {
        // Never a part of a text.
        true => {
            [&[TokTrie::SPECIAL_TOKEN_MARKER], tokenizer.name(token).unwrap_or_default().as_bytes()]
                .concat()
        }
        false => tokenizer.bytes(token).to_vec(),
    };
    let words: Vec<Vec<u8>> = (0..vocabulary as u32).map(word).collect();
    let trie = TokTrie::from(&TokRxInfo::new(vocabulary as u32, end), &words);
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory =
        ParserFactory::new_simple(&environment).map_err(|e| Error::model(e.to_string()))?;
    factory.quiet();
    limits(factory.limits_mut());
    Ok(factory)
}
