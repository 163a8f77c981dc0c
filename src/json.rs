//! Text as JSON and as HTML, for the pages that the library writes. JSON stands in a `<script>`
//! there, which no text may end, so the characters of HTML are escaped in JSON too.

use std::fmt::Write;

/// A JSON string, with its quotes. It can stand anywhere in a page's script.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Text as HTML has it, between tags or in an attribute.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{escaped, quoted};

    #[test]
    fn a_quoted_text_is_itself_again_and_ends_no_script() {
        for text in
            ["", "a\"b\\c\n\t\u{1}", "</script><!--", "&amp;", "\u{2028}\u{2029}", "é 漢 🙂"]
        {
            let json = quoted(text);
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
            assert!(!json.contains(['<', '>', '&', '\n', '\u{2028}', '\u{2029}']), "{json}");
        }
        assert_eq!(escaped("<b title=\"a&b\">"), "&lt;b title=&quot;a&amp;b&quot;&gt;");
    }
}
