//! The environment of templates: Jinja's words with Python's methods, each paid for with fuel.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, StringInput, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use std::collections::HashSet;

/// An environment with a template of this name.
pub fn environment(name: &'static str, source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    // As `transformers` has it.
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    check(source, &syntax)?;
    environment.set_syntax(syntax);
    environment.set_unknown_method_callback(method);
    environment.add_filter("join", join);
    environment.add_filter("chain", chain);
    environment.add_filter("tojson", tojson);
    environment.set_formatter(|out, state, value| {
        measure(state, value)?;
        minijinja::escape_formatter(out, state, value)
    });

    environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    environment.add_template_owned(name, source.to_owned())?;
    Ok(environment)
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
    match (name, value.as_str(), args) {
        ("replace", Some(_), [old, new]) => {
            state.apply_filter("replace", &[value.clone(), old.clone(), new.clone()])
        }
        ("join", Some(_), [list]) => state.apply_filter("join", &[list.clone(), value.clone()]),
        ("format", Some(text), _) => {
            // Every field may be the largest argument, and as wide as its number says.
            let width = text.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
            if width > 4 {
                return Err(Error::new(ErrorKind::InvalidOperation, "a format as wide as that"));
            }
            let largest = args.iter().map(size).max().unwrap_or(0) + 10u64.pow(width as u32);
            state.consume_fuel(text.matches('{').count() as u64 * largest / 64)?;
            minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
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

/// The library's, whose lists are copied.
fn chain(state: &mut State, list: &Value, others: Rest<Value>) -> Result<Value, Error> {
    let items: usize = others.0.iter().chain([list]).map(|list| list.len().unwrap_or(0)).sum();
    state.consume_fuel(items as u64 / 2)?;
    minijinja::filters::chain(state, list.clone(), others)
}

/// Pays for all of a value before it is written: a list that is twice in a list is written twice.
fn measure(state: &State, value: &Value) -> Result<(), Error> {
    state.consume_fuel(1 + value.as_str().map_or(0, str::len) as u64 / 16)?;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter()?.try_for_each(|item| measure(state, &item))
        }
        ValueKind::Map => value.try_iter()?.try_for_each(|key| {
            measure(state, &key)?;
            measure(state, &value.get_item(&key)?)
        }),
        _ => Ok(()),
    }
}

/// As `transformers` has it: nothing is hidden from HTML.
fn tojson(
    state: &mut State,
    value: &Value,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    measure(state, value)?;
    let hidden = minijinja::filters::tojson(value, indent, kwargs)?;
    let (mut text, mut rest) = (String::new(), hidden.as_str().unwrap_or_default());
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let shown = [("\\u003c", '<'), ("\\u003e", '>'), ("\\u0026", '&'), ("\\u0027", '\'')];
        rest = match shown.iter().find(|(code, _)| rest[at..].starts_with(code)) {
            Some((code, shown)) => {
                text.push(*shown);
                &rest[at + code.len()..]
            }
            // Another escape: two bytes at least, of which the second may be a backslash.
            None => {
                text.push_str(&rest[at..at + 2]);
                &rest[at + 2..]
            }
        };
    }
    text.push_str(rest);
    Ok(Value::from(text))
}
