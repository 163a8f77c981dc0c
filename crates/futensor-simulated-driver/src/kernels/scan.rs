//! Finds, in preprocessed CUDA C, the parts that no macro can tell g++ of: the kernels' names,
//! dynamic shared memory, and the fields of structs that are passed by value.
//!
//! A tokenizer and no more: what the tokens mean is left to g++, which compiles the result. Pure
//! text.

/// What `__global__` and `__shared__` are called while the source is scanned.
pub const GLOBAL: &str = "__futsim_global__";
/// See `GLOBAL`.
pub const SHARED: &str = "__futsim_shared__";

/// What was found.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Found {
    /// The source, in a form that g++ takes.
    pub text: String,
    /// Kernels that are defined and no templates.
    pub kernels: Vec<String>,
    /// Structs at the top level, with the names of their fields.
    pub structs: Vec<(String, Vec<String>)>,
}

/// Splits text into identifiers, numbers, literals, white space, and single characters. Lines that
/// begin with `#` are one token.
fn tokens(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut result = Vec::new();
    let mut at = 0;
    let mut line_begins = true;
    while at < bytes.len() {
        let first = bytes[at];
        let mut end = at + 1;
        let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
        if first == b'#' && line_begins {
            while end < bytes.len() && bytes[end] != b'\n' {
                end += 1;
            }
        } else if word(first) {
            while end < bytes.len()
                && (word(bytes[end]) || bytes[end] == b'.' && first.is_ascii_digit())
            {
                end += 1;
            }
        } else if first == b'"' || first == b'\'' {
            while end < bytes.len() && bytes[end] != first {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            end = (end + 1).min(bytes.len());
        } else if first.is_ascii_whitespace() {
            while end < bytes.len() && bytes[end].is_ascii_whitespace() && bytes[end - 1] != b'\n' {
                end += 1;
            }
        }
        line_begins = if first.is_ascii_whitespace() {
            line_begins || text[at..end].contains('\n')
        } else {
            false
        };
        result.push(&text[at..end]);
        at = end;
    }
    result
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

fn is_blank(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_whitespace()) || token.starts_with('#')
}

/// The index after the bracket that closes the one at `open`.
fn after_brackets(tokens: &[&str], open: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth -= 1;
                if depth == 0 {
                    return i + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

fn next_solid(tokens: &[&str], mut at: usize) -> usize {
    while at < tokens.len() && is_blank(tokens[at]) {
        at += 1;
    }
    at
}

/// Scans a preprocessed source.
pub fn scan(source: &str) -> Found {
    let tokens = tokens(source);
    let mut found = Found::default();
    let mut statement = 0; // where the current top-level statement begins
    let mut depth = 0;
    // "a::" for each brace of a namespace that is open, "" for `extern "C"`.
    let mut spaces: Vec<String> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            GLOBAL => {
                let template = tokens[statement..at].contains(&"template");
                if let Some(name) = kernel(&tokens, at + 1)
                    && !template
                    && !found.kernels.contains(&name)
                {
                    found.kernels.push(name);
                }
                at += 1;
                continue;
            }
            SHARED => {
                let before = found.text.trim_end();
                if before.ends_with("extern") && !before.ends_with("_extern") {
                    found.text.truncate(before.len() - "extern".len());
                    at = dynamic(&tokens, at + 1, &mut found.text);
                } else {
                    found.text += "static";
                    at += 1;
                    if depth > 0 {
                        at = fresh(&tokens, at, &mut found.text);
                    }
                }
                continue;
            }
            "struct" if depth == 0 && !tokens[statement..at].contains(&"template") => {
                if let Some((name, fields)) = fields(&tokens, at + 1) {
                    found.structs.push((spaces.concat() + &name, fields));
                }
            }
            "{" => {
                // The braces of `extern "C"` and of a namespace enclose top-level statements; those
                // of a function that is `extern "C"` do not.
                let before = &tokens[statement..at];
                let last = before.iter().rev().find(|t| !is_blank(t));
                let linkage =
                    before.contains(&"namespace") || last.is_some_and(|t| t.starts_with('"'));
                if !(linkage && depth == 0) {
                    depth += 1;
                } else {
                    let mut words =
                        tokens[statement..at].iter().skip_while(|&&t| t != "namespace").skip(1);
                    let name = words.find(|t| is_word(t));
                    spaces.push(name.map_or(String::new(), |n| format!("{n}::")));
                    statement = at + 1;
                }
            }
            "}" => {
                if depth == 0 {
                    spaces.pop();
                }
                depth = (depth - 1).max(0);
                if depth == 0 {
                    statement = at + 1;
                }
            }
            ";" if depth == 0 => statement = at + 1,
            _ => {}
        }
        found.text += tokens[at];
        at += 1;
    }
    found
}

/// The name in `void __launch_bounds__(256) name(...) {`; `None` for a mere declaration.
fn kernel(tokens: &[&str], mut at: usize) -> Option<String> {
    loop {
        let word = at;
        if !is_word(tokens.get(word)?) {
            at += 1;
            continue;
        }
        let open = next_solid(tokens, word + 1);
        if tokens.get(open) != Some(&"(") {
            at = word + 1;
            continue;
        }
        let close = next_solid(tokens, after_brackets(tokens, open));
        if tokens[word].starts_with("__") && tokens.get(close) != Some(&"{") {
            at = close; // __launch_bounds__(...), __attribute__((...))
            continue;
        }
        return (tokens.get(close) == Some(&"{")).then(|| tokens[word].to_owned());
    }
}

/// Copies a declaration of shared variables, and adds that the first thread of a block to reach it
/// fills them with ones: another block, or an earlier launch, must leave nothing behind. Returns
/// the index after the `;`.
fn fresh(tokens: &[&str], start: usize, text: &mut String) -> usize {
    let mut end = start;
    let mut plain = Vec::new();
    while end < tokens.len() && tokens[end] != ";" {
        let aligner = matches!(tokens[end], "alignas" | "__align__" | "__attribute__");
        let next =
            if aligner { after_brackets(tokens, next_solid(tokens, end + 1)) } else { end + 1 };
        if !aligner && !is_blank(tokens[end]) {
            plain.push(tokens[end]);
        }
        text.extend(tokens[end..next].iter().copied());
        end = next;
    }
    text.push(';');
    for name in declared(&plain) {
        *text += &format!(" FUTSIM_FRESH({name});");
    }
    end + 1
}

/// `extern __shared__ T name[];` becomes a pointer of that name. Returns the index after the `;`.
fn dynamic(tokens: &[&str], start: usize, text: &mut String) -> usize {
    let mut end = start;
    let mut name = None;
    while end < tokens.len() && tokens[end] != ";" {
        match tokens[end] {
            "[" => {
                end = after_brackets(tokens, end);
                continue;
            }
            "(" => {
                end = after_brackets(tokens, end);
                continue;
            }
            token if is_word(token) => name = Some(end),
            _ => {}
        }
        end += 1;
    }
    let Some(name) = name else { return end };
    let mut kind = String::new();
    let mut at = start;
    while at < name {
        // Alignment is the simulator's to give: the memory it hands out has the largest.
        let aligner = matches!(tokens[at], "alignas" | "__align__" | "__attribute__");
        at = if aligner { after_brackets(tokens, next_solid(tokens, at + 1)) } else { at + 1 };
        if !aligner {
            kind += tokens[at - 1];
        }
    }
    *text += &format!("{kind}* const {} = ({kind}*)futsim_s.dynamic", tokens[name]);
    end
}

/// The name and the fields of `Name { ... }`, where it is that plain.
fn fields(tokens: &[&str], at: usize) -> Option<(String, Vec<String>)> {
    let mut word = next_solid(tokens, at);
    while matches!(*tokens.get(word)?, "alignas" | "__align__" | "__attribute__") {
        word = next_solid(tokens, after_brackets(tokens, next_solid(tokens, word + 1)));
    }
    let name = *tokens.get(word).filter(|token| is_word(token))?;
    let open = next_solid(tokens, word + 1);
    if tokens.get(open) != Some(&"{") {
        return None;
    }
    let end = after_brackets(tokens, open);
    let mut names = Vec::new();
    let mut statement: Vec<&str> = Vec::new();
    let mut i = open + 1;
    while i + 1 < end {
        match tokens[i] {
            "{" => {
                // A body of a function or of a nested type ends the statement it belongs to; an
                // initialiser of a field does not.
                let initialiser = !statement
                    .iter()
                    .any(|&t| matches!(t, "(" | "struct" | "union" | "enum" | "class"));
                i = after_brackets(tokens, i);
                if !initialiser {
                    statement.clear();
                }
                continue;
            }
            ";" => {
                names.extend(declared(&statement));
                statement.clear();
            }
            "private" | "protected" => return None,
            token if is_blank(token) => {}
            token => statement.push(token),
        }
        i += 1;
    }
    Some((name.to_owned(), names))
}

/// The names that a field's declaration declares. Functions and types declare none.
fn declared(statement: &[&str]) -> Vec<String> {
    let skip = ["(", "static", "using", "typedef", "friend", "template", "operator", ":"];
    if statement.iter().any(|token| skip.contains(token)) {
        return Vec::new();
    }
    let mut names = Vec::new();
    let mut last = None;
    let mut inside = 0;
    let mut done = false;
    for &token in statement.iter().chain([&","]) {
        match token {
            "[" | "<" => {
                inside += 1;
                done |= token == "[";
            }
            "]" | ">" => inside -= 1,
            "=" => done = true,
            "," if inside == 0 => {
                names.extend(last.take().map(str::to_owned));
                done = false;
            }
            token if is_word(token) && inside == 0 && !done => last = Some(token),
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_variables_of_a_kernel_that_is_extern_c_are_filled() {
        let found =
            scan("extern \"C\" __futsim_global__ void k(float* x) { __futsim_shared__ int n; }");
        assert!(found.text.contains("static int n; FUTSIM_FRESH(n);"), "{}", found.text);
        assert_eq!(found.kernels, ["k"]);
    }

    #[test]
    fn kernels_are_found_behind_attributes_and_declarations_are_not() {
        let found = scan(
            "extern \"C\" __futsim_global__ void __launch_bounds__(256, 2) first(const float* a, \
                int n) { if (n) {} }\n\
             __futsim_global__ void only_declared(int);\n\
             template <class T> __futsim_global__ void generic(T* x) {}\n\
             extern \"C\" { __futsim_global__ void second() { } }\n\
             const char* text = \"__futsim_global__ void no() {\";",
        );
        assert_eq!(found.kernels, ["first", "second"]);
        assert!(!found.text.contains("__futsim_global__ void first"));
    }

    #[test]
    fn shared_memory_becomes_static_and_dynamic_shared_memory_a_pointer() {
        let found = scan(
            "__futsim_global__ void k() { __futsim_shared__ float a[32]; \
             extern __futsim_shared__ __align__(16) unsigned char bytes[]; }",
        );
        assert!(found.text.contains("static float a[32]; FUTSIM_FRESH(a);"), "{}", found.text);
        let flat: String = found.text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            flat.contains("unsigned char * const bytes = ( unsigned char *)futsim_s.dynamic;"),
            "{flat}"
        );
    }

    #[test]
    fn fields_are_named_and_methods_and_types_are_not() {
        let found = scan(
            "struct __align__(16) Arguments { const float* in[8]; float *out, *more; int n = 0, \
                shape[4]{}; \
             static const int k = 3; int total() const { return n; } struct Inner { int x; }; \
             Inner inner; };",
        );
        let expected = ["in", "out", "more", "n", "shape", "inner"].map(str::to_owned).to_vec();
        assert_eq!(found.structs, [("Arguments".to_owned(), expected)]);
    }

    #[test]
    fn structs_of_a_namespace_are_called_by_their_full_name() {
        let found = scan(
            "namespace a { struct One { int x; }; namespace b { struct Two { int y; }; int f() { \
                return 1; } } } \
             extern \"C\" { struct Three { int z; }; } struct Four { int w; };",
        );
        let names: Vec<&str> = found.structs.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a::One", "a::b::Two", "Three", "Four"]);
    }
}
