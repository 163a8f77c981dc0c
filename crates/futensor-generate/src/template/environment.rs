//! The environment of templates: Jinja's words with Python's methods, each paid for with fuel.

use super::paid::{self, measure, parts, room};
use super::python::{remainder, strftime_now, tojson};
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, StringInput};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback as pycompat;
use std::collections::HashSet;

/// An environment with a template of this name.
pub fn environment(name: &'static str, source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    // As `transformers` has it.
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    let source = without_generation(source, &syntax)?;
    check(&source, &syntax)?;
    environment.set_syntax(syntax);
    environment.set_unknown_method_callback(method);
    environment.add_filter("join", join);
    environment.add_filter("tojson", tojson);
    environment.add_filter(paid::REMAINDER, remainder);
    environment.set_formatter(|out, state, value| {
        measure(state, value)?;
        minijinja::escape_formatter(out, state, value)
    });

    paid::add_to(&mut environment);

    environment.add_function(
        "raise_exception",
        |state: &State, text: Value| -> Result<Value, Error> {
            measure(state, &text)?;
            Err(Error::new(ErrorKind::InvalidOperation, text.to_string()))
        },
    );
    environment.add_function("strftime_now", |state: &State, format: &str| {
        measure(state, &Value::from(format))?;
        strftime_now(format)
    });
    environment.add_template_owned(name, source)?;
    Ok(environment)
}

/// A template in which `{% generation %}`, which marks what the model has said, is a scope alone.
fn without_generation(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    let tokens: Vec<_> = tokenize(source, false, syntax.clone()).collect::<Result<Vec<_>, _>>()?;
    let (mut made, mut from) = (String::new(), 0);
    for pair in tokens.windows(2) {
        let [(Token::BlockStart, _), (Token::Ident(word), span)] = pair else { continue };
        let scope = match *word {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        made.push_str(&source[from..span.start_offset as usize]);
        made.push_str(scope);
        from = span.end_offset as usize;
    }
    made.push_str(&source[from..]);
    Ok(made)
}

/// Refuses a template that could make a value part of itself, which nothing would ever show,
/// compare or free. Only a namespace changes, and only a macro or a caller knows a namespace: so
/// none of them may be a part of a value, or have a second name.
fn check(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    let tokens: Vec<Token> = tokenize(source, false, syntax.clone())
        .map(|t| t.map(|(t, _)| t))
        .collect::<Result<_, _>>()?;
    let at = |k: usize| tokens.get(k);
    let word = |k: usize| match at(k) {
        Some(Token::Ident(word)) => *word,
        _ => "",
    };
    let wrong = |name: &str| {
        let text = format!("{name:?} may be read and set, and be no part of a value");
        Err(Error::new(ErrorKind::SyntaxError, text))
    };
    let (mut spaces, mut macros) = (HashSet::new(), HashSet::from(["caller"]));
    let calls = |k: usize| word(k) == "namespace" && matches!(at(k + 1), Some(Token::ParenOpen));
    let of_another = |k: usize| k > 0 && matches!(at(k - 1), Some(Token::Dot));
    for k in 0..tokens.len() {
        match word(k) {
            "macro" => drop(macros.insert(word(k + 1))),
            "namespace" if calls(k) && !of_another(k) => {
                let set =
                    k >= 3 && word(k - 3) == "set" && matches!(at(k - 1), Some(Token::Assign));
                // Up to the end of the call, which is the end of the statement.
                let mut open = 0;
                let end = (k + 1..tokens.len()).find(|&at| {
                    open += match &tokens[at] {
                        Token::ParenOpen => 1,
                        Token::ParenClose => -1,
                        _ => 0,
                    };
                    open == 0
                });
                if !set || !end.is_some_and(|end| matches!(at(end + 1), Some(Token::BlockEnd))) {
                    return wrong("namespace");
                }
                spaces.insert(word(k - 2));
            }
            _ => {}
        }
    }
    // Without a call there is none, but by a name that the function has got.
    spaces.insert("namespace");
    for k in (0..tokens.len()).filter(|&k| !of_another(k) && !calls(k)) {
        let (name, next) = (word(k), at(k + 1));
        let told = k > 0 && word(k - 1) == "macro";
        let space = matches!(next, Some(Token::Dot | Token::BracketOpen | Token::Assign));
        let called = matches!(next, Some(Token::ParenOpen | Token::Dot | Token::Ident("is")));
        if spaces.contains(name) && !space || macros.contains(name) && !called && !told {
            return wrong(name);
        }
    }
    Ok(())
}

/// Python's methods, each paid for by the bytes it looks at. Those that make more than they are
/// given are the filters of the same names, which the library has pay before they make it.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let size = |value: &Value| value.as_str().map(str::len).or(value.len()).unwrap_or(0) as u64;
    state.consume_fuel((size(value) + args.iter().map(size).sum::<u64>()) / 64)?;
    let spent = |state: &State| state.fuel_levels().map_or(0, |(spent, _)| spent);
    let before = spent(state);
    for arg in args.iter().filter(|arg| arg.as_object().is_some()) {
        measure(state, arg)?;
    }
    let whole = spent(state) - before;
    match (name, value.as_str(), args) {
        ("replace", Some(_), [old, new]) => {
            return state.apply_filter("replace", &[value.clone(), old.clone(), new.clone()]);
        }
        ("join", Some(_), [list]) => {
            return state.apply_filter("join", &[list.clone(), value.clone()]);
        }
        // Each character of the argument is looked for at either end, again and again.
        ("strip" | "lstrip" | "rstrip", Some(_), [of]) => {
            state.consume_fuel(size(value).saturating_mul(size(of)) / 64)?;
        }
        ("split", Some(text), _) => {
            room(state, parts(text, args.first().and_then(Value::as_str)))?;
        }
        ("splitlines", Some(text), _) => room(state, parts(text, Some("\n")))?,
        ("count", None, _) => drop(measure(state, value)?),
        ("format", Some(text), _) => {
            // Every field may be the largest argument, and as wide as its number says.
            let width = text.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
            if width > 4 {
                return Err(Error::new(ErrorKind::InvalidOperation, "a format as wide as that"));
            }
            let text_max = args.iter().map(size).max().unwrap_or(0);
            // A part of a list is some 16 bytes, beside its text.
            let largest = text_max + 16 * whole + 10u64.pow(width as u32);
            state.consume_fuel(text.matches('{').count() as u64 * largest / 64)?;
        }
        _ => {}
    }
    pycompat(state, value, name, args)
}

/// The library's, but that texts are paid for before they are joined.
fn join(
    state: &mut State,
    list: &Value,
    joiner: Option<StringInput<'_>>,
    attribute: Option<&str>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let between = joiner.as_ref().map_or(0, |joiner| joiner.as_str().len());
    if let Ok(items) = list.try_iter() {
        for item in items {
            let own = item.as_str().map_or(0, str::len);
            let of_it = attribute.and_then(|name| item.get_attr(name).ok());
            let of_it = of_it.and_then(|value| value.as_str().map(str::len)).unwrap_or(0);
            state.consume_fuel(1 + (own + of_it + between) as u64 / 64)?;
        }
    }
    minijinja::filters::join(state, list, joiner, attribute, kwargs)
}
