//! Text from tokens: whole characters, and no part of a stop word.

/// Turns the bytes of token after token into text that can be shown. A character that is not whole
/// yet, and what may be the beginning of a stop word, are held back.
#[derive(Debug, Default)]
pub struct Text {
    stops: Vec<Vec<u8>>,
    held: Vec<u8>,
}

impl Text {
    /// With these stop words; empty ones are none.
    pub fn new(stops: &[String]) -> Text {
        let stops =
            stops.iter().filter(|s| !s.is_empty()).map(|s| s.clone().into_bytes()).collect();
        Text { stops, held: Vec::new() }
    }

    /// What can be shown now, and whether a stop word has come: then nothing follows.
    pub fn push(&mut self, bytes: &[u8]) -> (String, bool) {
        self.held.extend_from_slice(bytes);
        let found = self.stops.iter().filter_map(|stop| find(&self.held, stop)).min();
        if let Some(at) = found {
            let text = String::from_utf8_lossy(&self.held[..at]).into_owned();
            self.held.clear();
            return (text, true);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let whole = whole_characters(&self.held[..self.held.len() - keep]);
        let text = String::from_utf8_lossy(&self.held[..whole]).into_owned();
        self.held.drain(..whole);
        (text, false)
    }

    /// What was held back, at the end.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

/// How much of the end of `bytes` is a beginning of `word`.
fn overlap(bytes: &[u8], word: &[u8]) -> usize {
    let most = bytes.len().min(word.len() - 1);
    (1..=most).rev().find(|&n| bytes[bytes.len() - n..] == word[..n]).unwrap_or(0)
}

/// How many bytes go before a last character that may still become whole.
fn whole_characters(bytes: &[u8]) -> usize {
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        at += chunk.valid().len();
        let rest = chunk.invalid();
        let may_go_on = at + rest.len() == bytes.len() && is_beginning(rest);
        if !rest.is_empty() && may_go_on {
            return at;
        }
        at += rest.len();
    }
    at
}

/// True of fewer bytes than their character has.
fn is_beginning(bytes: &[u8]) -> bool {
    let length = match bytes.first() {
        Some(0xc2..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf4) => 4,
        _ => return false,
    };
    bytes.len() < length
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of `bytes` that come `by` at a time.
    fn all(bytes: &[u8], by: usize, stops: &[&str]) -> (String, bool) {
        let mut text = Text::new(&stops.iter().map(|s| s.to_string()).collect::<Vec<_>>());
        let mut out = String::new();
        for piece in bytes.chunks(by) {
            let (more, stopped) = text.push(piece);
            out.push_str(&more);
            if stopped {
                return (out, true);
            }
        }
        out.push_str(&text.finish());
        (out, false)
    }

    #[test]
    fn characters_come_whole_however_the_bytes_come() {
        let text = "naïve 中文 🦀!";
        for by in 1..8 {
            assert_eq!(all(text.as_bytes(), by, &[]), (text.into(), false));
        }
        let mut crab = Text::new(&[]);
        assert_eq!(crab.push(&"🦀".as_bytes()[..3]), (String::new(), false));
        assert_eq!(crab.push(&"🦀".as_bytes()[3..]), ("🦀".into(), false));
    }

    #[test]
    fn bytes_that_are_no_text_do_not_stop_the_rest() {
        for by in 1..5 {
            let (text, _) = all(b"a\xffb\xe4\xb8c", by, &[]);
            assert!(text.starts_with('a') && text.contains('b') && text.ends_with('c'), "{text:?}");
        }
    }

    #[test]
    fn of_several_stop_words_the_first_to_come_cuts_however_they_are_listed() {
        for by in 1..20 {
            for stops in [["STOP", "END"], ["END", "STOP"]] {
                assert_eq!(all(b"one END two STOP", by, &stops), ("one ".into(), true), "{by}");
                assert_eq!(all(b"one STOP two END", by, &stops), ("one ".into(), true), "{by}");
            }
        }
    }

    #[test]
    fn a_stop_word_is_found_across_tokens_and_not_shown() {
        for by in 1..6 {
            assert_eq!(all(b"one two END three", by, &["END"]), ("one two ".into(), true));
            assert_eq!(all(b"one EN two", by, &["END"]), ("one EN two".into(), false));
            assert_eq!(all(b"aaab", by, &["aab"]), ("a".into(), true));
            assert_eq!(all(b"ends in EN", by, &["END"]), ("ends in EN".into(), false));
        }
    }
}
