//! Chat templates: from messages to the text that a model was trained to answer.
//!
//! A template is Jinja, as Hugging Face's `chat_template` and GGUF's `tokenizer.chat_template` hold
//! it. It is somebody else's program: it runs with bounded fuel and sees nothing but the messages.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

/// Steps that a template may take.
const FUEL: u64 = 1_000_000;

/// ChatML, for models whose files have no template but its tokens.
pub const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// A message of a conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A message.
    #[must_use]
    pub fn new(role: &str, content: &str) -> Message {
        Message { role: role.to_owned(), content: content.to_owned() }
    }
}

/// A model's chat template, and the tokens that it may name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChatTemplate {
    /// Jinja.
    pub template: String,
    /// The token that begins a text; empty if there is none.
    pub bos_token: String,
    /// The token that ends an answer; empty if there is none.
    pub eos_token: String,
}

/// Why a conversation was not written.
#[derive(Debug, thiserror::Error)]
#[error("the model's chat template cannot be used: {0}")]
pub struct ChatError(String);

impl ChatTemplate {
    /// ChatML.
    #[must_use]
    pub fn chatml() -> ChatTemplate {
        ChatTemplate {
            template: CHATML.to_owned(),
            bos_token: String::new(),
            eos_token: "<|im_end|>".to_owned(),
        }
    }

    /// The conversation as text, up to where the model's answer begins.
    ///
    /// # Errors
    /// If the template is not Jinja, takes too many steps, or refuses the messages.
    pub fn render(&self, messages: &[Message]) -> Result<String, ChatError> {
        let told = |e: minijinja::Error| ChatError(e.to_string());
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        // What transformers sets, and templates count on.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(told)?);
        let raise = |text: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
        };
        environment.add_function("raise_exception", raise);
        let template = environment.template_from_str(&self.template).map_err(told)?;
        let (bos_token, eos_token) = (&self.bos_token, &self.eos_token);
        let pairs = |m: &Message| [("role", m.role.clone()), ("content", m.content.clone())];
        let messages: Vec<Value> = messages.iter().map(|m| Value::from_pairs(pairs(m))).collect();
        let context = context! { messages, bos_token, eos_token, add_generation_prompt => true };
        template.render(context).map_err(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SmolLM2's template speaks a system message where the conversation has none; what a template
    /// refuses, and one that never ends, are one error each.
    #[test]
    fn templates_are_obeyed() {
        let smol = ChatTemplate {
            template: "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}".to_owned(),
            ..ChatTemplate::chatml()
        };
        let hi = [Message::new("user", "Hi")];
        let want = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(smol.render(&hi).expect("rendered"), want);
        let plain = ChatTemplate::chatml().render(&hi).expect("rendered");
        assert_eq!(plain, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
        let with = |template: &str| {
            let template = template.to_owned();
            let chat = ChatTemplate { template, ..ChatTemplate::chatml() };
            chat.render(&hi).expect_err("refused").to_string()
        };
        assert!(with("{{ raise_exception('no system role') }}").contains("no system role"));
        assert!(
            with(
                "{% for x in range(100000) %}{% for y in range(100000) %}a{% endfor %}{% endfor %}"
            )
            .contains("fuel")
        );
        assert!(with("{% for %}").contains("cannot be used"));
    }
}
