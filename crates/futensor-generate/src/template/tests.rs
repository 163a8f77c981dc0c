//! Templates of conversations, as models bring them, and the limits that they run under.

use super::*;
use futensor::block_on;
use serde_json::json;

#[test]
fn a_conversation_becomes_the_text_that_the_model_knows() {
    // SmolLM2's, with Python's methods as others have them.
    let source = "{% for message in messages %}{% if loop.first and messages[0]['role'] != \
        'system' %}\
        {{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}\
        {{'<|im_start|>' + message['role'] + '\n' + message['content'].strip() + '<|im_end|>' + \
        '\n'}}\
        {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    let template = Template::new(source, "", "").unwrap();
    let text = template.render(&[json!({ "role": "user", "content": " Hello {{ 1 }} " })]);
    let text = block_on(text).unwrap();
    let system = "<|im_start|>system\nBe kind.<|im_end|>\n";
    assert_eq!(
        text,
        format!("{system}<|im_start|>user\nHello {{{{ 1 }}}}<|im_end|>\n<|im_start|>assistant\n")
    );
}

#[test]
fn what_a_template_refuses_is_the_requests_error() {
    let template =
        Template::new("{{ bos_token }}{{ raise_exception('no such role') }}", "", "").unwrap();
    let error = block_on(template.render(&[json!({ "role": "nobody" })])).unwrap_err();
    assert!(error.is_request() && error.to_string().contains("no such role"), "{error}");
    assert!(Template::new("{% for %}", "", "").unwrap_err().is_model());
}

/// Renders without messages, but for one that says hello.
fn render(source: &str) -> Result<String> {
    block_on(
        Template::new(source, "<s>", "</s>")?
            .render(&[json!({ "role": "user", "content": "hello" })]),
    )
}

#[test]
fn what_begins_and_ends_a_text_is_itself() {
    assert_eq!(render("{{ bos_token }}a{{ eos_token }}").unwrap(), "<s>a</s>");
}

#[test]
fn a_template_that_does_too_much_ends_with_an_error() {
    let begin = "{% set ns = namespace(x='ab', y=[1]) %}{% for i in range(100000) %}";
    for (body, after) in [
        ("{% for j in range(100000) %}{% endfor %}", ""),
        ("{% set ns.x = ns.x ~ ns.x %}", ""),
        ("{% set ns.x = ns.x + ns.x %}", ""),
        ("{% set ns.x = ns.x * 9 %}", ""),
        ("{% set ns.x = ns.x.replace('a', ns.x) %}", ""),
        ("{% set ns.x = ns.x.upper() ~ ns.x.join([ns.x, ns.x, ns.x]) %}", ""),
        ("{% set ns.x = [ns.x, ns.x]|join %}", ""),
        ("{% set ns.x = '{}{}'.format(ns.x, ns.x) %}", ""),
        ("{% set ns.y = [[[[[[[[ns.y]]]]]]]] %}", ""),
        ("{% set ns.y = {'a': {'a': {'a': {'a': ns.y}}}} %}", ""),
        ("{% set ns.y = ns.y|chain(ns.y)|list %}", ""),
        ("{% set ns.x = ns.x ~ 'aaaaaaaaaaaaaaaaaaaa' %}{% if ns.x.isspace() %}{% endif %}", ""),
        (
            "{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' \
                }}",
            "",
        ),
    ] {
        let error = render(&format!("{begin}{body}{{% endfor %}}{after}")).unwrap_err();
        assert!(
            error.is_request() && error.to_string().contains("more than any has to"),
            "{body}: {error}"
        );
    }
    let error = render("{{ '{:999999999}'.format(1) }}").unwrap_err();
    assert!(error.to_string().contains("as wide"), "{error}");
}

#[test]
fn values_as_deep_as_they_can_be_are_shown_compared_and_freed() {
    for body in [
        "{% set ns.y = [[[[[[[[ns.y]]]]]]]] %}",
        "{% set ns.y = {'a': {'a': {'a': {'a': ns.y}}}} %}",
    ] {
        // A conversation with as much fuel as there can be.
        let deep = format!(
            "{{% set ns = namespace(y=1) %}}{{% for i in range(7000) %}}{body}{{% endfor %}}\
            {{{{ (ns.y|string)|length > 9 }}}} {{{{ (ns.y|tojson)|length > 9 }}}} {{{{ ns.y == \
            [ns.y] }}}}"
        );
        let template = Template::new(&deep, "", "").unwrap();
        let many = vec![json!({ "role": "user", "content": "a" }); 2_000];
        assert_eq!(block_on(template.render(&many)).unwrap(), "True True False");
    }
}

#[test]
fn no_value_is_a_part_of_itself() {
    for wrong in [
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}",
        "{% set ns = namespace() %}{% set other = ns %}{% set other.x = [ns.y] %}",
        "{% set ns = namespace() %}{% set ns.x = namespace(y=ns) %}",
        "{% set ns = [namespace()] %}",
        "{% set f = namespace %}{% set ns = f() %}",
        "{% set ns = namespace() %}{% macro m() %}{{ ns.x }}{% endmacro %}{% set ns.x = m %}",
        "{% set ns = namespace() %}{{ ns }}",
    ] {
        let error = Template::new(wrong, "", "").unwrap_err();
        assert!(
            error.is_model() && error.to_string().contains("no part of a value"),
            "{wrong}: {error}"
        );
    }
    let right = "{# ns, namespace #}{% macro m(x) %}<{{ x }}>{% endmacro %}{% set ns = \
        namespace(last=0, found=false) %}\
        {% for m2 in messages %}{% set ns.last = ns.last + 1 %}{% set ns.found = [ns.last] %}{% \
        endfor %}\
        {{ m(ns.last) }}{{ ns['found'] }} ns namespace";
    assert_eq!(render(right).unwrap(), "<1>[1] ns namespace");
}

#[test]
fn sources_as_deep_as_they_can_be_are_parsed_or_refused() {
    let most = super::SOURCE_MAX;
    let filled = |open: &str, middle: &str, close: &str| {
        let count = (most - 40) / (open.len() + close.len());
        format!("{}{middle}{}", open.repeat(count), close.repeat(count))
    };
    for source in [
        format!("{{{{ 1{} }}}}", filled("+1", "", "")),
        format!("{{{{ {}1 }}}}", filled("not ", "", "")),
        format!("{{{{ {}1 }}}}", filled("-", "", "")),
        format!("{{{{ messages{} }}}}", filled("[0]", "", "")),
        format!("{{{{ 'a'{} }}}}", filled("|trim", "", "")),
        format!("{{{{ {} }}}}", filled("(", "1", ")")),
        format!("{{{{ {} }}}}", filled("[", "1", "]")),
        format!("{{% if 0 %}}{}{{% endif %}}", filled("{%elif 0%}", "", "")),
        filled("{%for i in [1]%}", "", "{%endfor%}"),
        filled("{% set a = namespace(", "", ""),
        "a".repeat(most + 1),
    ] {
        let begin = std::time::Instant::now();
        let _ =
            Template::new(&source, "", "").map(|template| block_on(template.render(&[json!({})])));
        assert!(begin.elapsed().as_secs() < 20, "{}", &source[..40]);
    }
    assert!(Template::new(&"a".repeat(most + 1), "", "").unwrap_err().is_model());
}

#[test]
fn a_text_is_made_by_another_thread() {
    let template = Template::new("{% for i in range(5000) %}{{ i }}{% endfor %}", "", "").unwrap();
    let mut took: Vec<_> = (0..5)
        .map(|_| {
            let begin = std::time::Instant::now();
            let work = template.render(&[json!({})]);
            let took = begin.elapsed();
            assert!(block_on(work).unwrap().starts_with("0123"));
            took
        })
        .collect();
    took.sort();
    assert!(took[1].as_micros() < 1000, "{took:?}");
}

#[test]
fn what_is_in_many_places_is_paid_for_in_each() {
    let doubled: String =
        (0..40).map(|k| format!("{{% set a{} = [a{k}, a{k}] %}}", k + 1)).collect();
    for end in ["{{ a40 }}", "{{ a40|tojson|length }}"] {
        let error = render(&format!("{{% set a0 = 1 %}}{doubled}{end}")).unwrap_err();
        assert!(error.to_string().contains("more than any has to"), "{end}: {error}");
    }
}

#[test]
fn json_is_as_it_is_and_no_part_of_a_page() {
    assert_eq!(
        render(r#"{{ "<a & 'b'> \\\\u003c"|tojson }}"#).unwrap(),
        r#""<a & 'b'> \\\\u003c""#
    );
}
