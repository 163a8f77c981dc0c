//! Chat templates: messages to the text that the model was trained on, by the Jinja template that
//! comes with it.

use crate::error::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value, context};
use serde::Serialize;

/// A chat template. Templates are run with a bounded recursion, and see nothing but what they are
/// given.
pub struct Template {
    environment: Environment<'static>,
    begin: String,
    end: String,
}

const NAME: &str = "chat";

impl Template {
    /// Of a template's source, and the names of the tokens that begin and end a text.
    ///
    /// # Errors
    /// Where the source is no template.
    pub fn new(source: &str, begin: &str, end: &str) -> Result<Template> {
        let mut environment = Environment::new();
        // As `transformers` has it.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| Error::model(e.to_string()))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |text: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
        });
        let added = environment.add_template_owned(NAME, source.to_owned());
        added.map_err(|e| Error::model(format!("the chat template: {e}")))?;
        Ok(Template { environment, begin: begin.into(), end: end.into() })
    }

    /// The text of a conversation, up to where the model is to go on. Messages are maps with `role`
    /// and `content`.
    ///
    /// # Errors
    /// Where the template does not take such messages.
    pub fn render(&self, messages: &[impl Serialize]) -> Result<String> {
        let wrong = |e: minijinja::Error| Error::request(format!("the chat template refuses: {e}"));
        let template = self.environment.get_template(NAME).map_err(wrong)?;
        let context = context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => true,
            bos_token => &self.begin,
            eos_token => &self.end,
        };
        template.render(context).map_err(wrong)
    }
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Template")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_conversation_becomes_the_text_that_the_model_knows() {
        // SmolLM2's, with Python's methods as others have them.
        let source = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
            {{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}\
            {{'<|im_start|>' + message['role'] + '\n' + message['content'].strip() + '<|im_end|>' + '\n'}}\
            {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
        let template = Template::new(source, "", "").unwrap();
        let text = template.render(&[json!({ "role": "user", "content": " Hello {{ 1 }} " })]).unwrap();
        let system = "<|im_start|>system\nBe kind.<|im_end|>\n";
        assert_eq!(
            text,
            format!("{system}<|im_start|>user\nHello {{{{ 1 }}}}<|im_end|>\n<|im_start|>assistant\n")
        );
    }

    #[test]
    fn what_a_template_refuses_is_the_requests_error() {
        let template = Template::new("{{ bos_token }}{{ raise_exception('no such role') }}", "", "").unwrap();
        let error = template.render(&[json!({ "role": "nobody" })]).unwrap_err();
        assert!(error.is_request() && error.to_string().contains("no such role"), "{error}");
        assert!(Template::new("{% for %}", "", "").unwrap_err().is_model());
    }
}
