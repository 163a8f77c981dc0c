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
    let text = template.render([json!({ "role": "user", "content": " Hello {{ 1 }} " })]);
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
    let error = block_on(template.render([json!({ "role": "nobody" })])).unwrap_err();
    assert!(error.is_request() && error.to_string().contains("no such role"), "{error}");
    assert!(Template::new("{% for %}", "", "").unwrap_err().is_model());
}

/// Renders without messages, but for one that says hello.
fn render(source: &str) -> Result<String> {
    block_on(
        Template::new(source, "<s>", "</s>")?
            .render([json!({ "role": "user", "content": "hello" })]),
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
            "{{% set ns = namespace(y=1) %}}{{% for i in range(5000) %}}{body}{{% endfor %}}\
            {{{{ (ns.y|string)|length > 9 }}}} {{{{ (ns.y|tojson)|length > 9 }}}} {{{{ ns.y == \
            [ns.y] }}}}"
        );
        let template = Template::new(&deep, "", "").unwrap();
        let many = vec![json!({ "role": "user", "content": "a" }); 2_000];
        assert_eq!(block_on(template.render(many)).unwrap(), "True True False");
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
            Template::new(&source, "", "").map(|template| block_on(template.render([json!({})])));
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
            let work = template.render([json!({})]);
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

/// As Python 3.11 says it.
#[test]
fn dates_are_pythons() {
    for (format, seconds, text) in [
        ("%d %b %Y", 1_709_208_000, "29 Feb 2024"),
        ("%Y-%m-%d %H:%M:%S", 0, "1970-01-01 00:00:00"),
        ("%A, %B %-d, %Y %I:%M %p %j", 1_735_689_599, "Tuesday, December 31, 2024 11:59 PM 366"),
        ("%a %y %u %w %e %F %T %R%%%Z", 4_102_444_800, "Fri 00 5 5  1 2100-01-01 00:00:00 00:00%"),
        ("%-m/%-d %I", 951_782_400, "2/29 12"),
    ] {
        assert_eq!(python::strftime(format, seconds).unwrap(), text, "{format}");
    }
    assert!(render("{{ strftime_now('%d %B %Y') }}").unwrap().contains(" 20"));
    let error = render("{{ strftime_now('%Q') }}").unwrap_err();
    assert!(error.is_request() && error.to_string().contains("%Q"), "{error}");
}

#[test]
fn a_template_that_cannot_be_read_refuses_conversations() {
    let error = Template::new("{% for %}", "", "").unwrap_err();
    let refused = block_on(Template::refusing(&error).render([0])).unwrap_err();
    assert!(refused.is_request() && refused.to_string().contains("the chat template"), "{refused}");
}

#[test]
fn formats_are_paid_for() {
    for (source, text) in [
        (
            "{{ '%5s|%-5s|%05d|%.2f|%x|%%' % ('a', 'b', -7, 1.5, 255) }}",
            "    a|b    |-0007|1.50|ff|%",
        ),
        ("{{ '%s' % 'x' }}{{ '%s and %s' % ('x', [1]) }}{{ 7 % 3 }}{{ -7 % 3 }}", "xx and [1]12"),
    ] {
        assert_eq!(render(source).unwrap(), text, "{source}");
    }
    for (source, says) in [
        ("{{ '%99999d' % 1 }}", "as wide"),
        ("{{ '%s' % () }}", "not enough"),
        ("{{ 'x' % 1 }}", "more values"),
        ("{{ 1 % 0 }}", "by zero"),
        ("{{ ('%s' * 99) % (([['a'] * 5000],) * 99) }}", "more than any has to"),
    ] {
        let error = render(source).unwrap_err();
        assert!(error.to_string().contains(says), "{source}: {error}");
    }
}

/// Thirty small lists: a thousand million items to whoever looks into the last.
fn doubled(name: &str) -> String {
    let set = format!("{{% set {name} = [1] %}}");
    let double = format!("{{% set {name} = [{name}, {name}] %}}");
    set + &double.repeat(40)
}

#[test]
fn whatever_looks_into_a_value_pays_for_all_of_it() {
    let values = doubled("a") + &doubled("b");
    for look in [
        "{{ a == b }}",
        "{{ a != b }}",
        "{{ a < b }}",
        "{{ a >= b }}",
        "{{ a < b < a }}",
        "{{ a in [b] }}",
        "{{ a not in [b] }}",
        "{{ a in {'x': b} }}",
        "{{ a ~ '' }}",
        "{{ {'x': 1}[a] }}",
        "{{ [a, b]|sort|length }}",
        "{{ [a, b]|min|length }}",
        "{{ [a, b]|max|length }}",
        "{{ [a, b]|unique|length }}",
        "{{ [{'k': a}, {'k': b}]|groupby('k')|length }}",
        "{{ [{'k': a}, {'k': b}]|sort(attribute='k')|length }}",
        "{{ {'x': a, 'y': b}|dictsort(by='value')|length }}",
        "{{ [a]|select('eq', b)|list|length }}",
        "{{ [a]|reject('in', [b])|list|length }}",
        "{{ [{'k': a}]|selectattr('k', 'equalto', b)|list|length }}",
        "{{ [a]|map('string')|list|length }}",
        "{{ a|string|length }}",
        "{{ a|upper|length }}",
        "{{ 'x'|replace('x', a)|length }}",
        "{{ '%s'|format(a)|length }}",
        "{{ [a]|join|length }}",
        "{{ ','.join([a])|length }}",
        "{{ [a].count(b) }}",
        "{{ '{}'.format(a)|length }}",
        "{{ a is eq b }}",
        "{{ a is in [b] }}",
        "{{ a is sameas b and a is lt b }}",
        "{% for x in [a, b] %}{{ loop.changed(x) }}{% endfor %}",
        "{% set x %}{% filter replace('x', a) %}x{% endfilter %}{% endset %}",
        "{{ raise_exception(a) }}",
        "{{ dict(**{'x': a}) is eq dict(x=b) }}",
    ] {
        let error = render(&format!("{values}{look}")).map(|text| text.len()).unwrap_err();
        assert!(error.to_string().contains("more than any has to"), "{look}: {error}");
    }
}

#[test]
fn what_makes_much_of_little_is_paid_for() {
    let hundred = "[1,2,3,4,5,6,7,8,9,0]*10";
    for (make, often) in [
        ("{% set ns.y = ns.y + ns.y %}", 60),
        ("{% set ns.y = ns.y + [1] %}{% set ns.y = ns.y + ns.y %}", 60),
        ("{% set ns.y = (ns.y * 900000)[1:] %}", 2),
        ("{% set ns.y = ns.y * 2 %}", 60),
        ("{% set ns.y = (ns.y|chain(ns.y)) %}", 60),
        ("{% set ns.y = (ns.y, ns.y)|sum(start=[]) %}", 60),
        ("{% set ns.y = ns.y|zip(ns.y) %}{% set ns.y = [ns.y, ns.y]|tojson|list %}", 60),
        ("{% set ns.y = (ns.y ~ ns.y)|list %}", 60),
        ("{% set ns.x = ns.x * 1000 %}", 9),
        ("{% set ns.x = ns.x|indent(100000000, true) %}", 1),
        ("{% set ns.x = [[[[[[1]]]]]]|tojson(indent=100000000) %}", 1),
        ("{% set ns.x = '%0999999999d'|format(1) %}", 1),
        ("{% set ns.x = ns.x|join(ns.x) %}", 60),
        ("{% set ns.y = [1]|batch(100000000, 1)|list %}", 1),
        ("{% set ns.y = [1]|slice(100000000)|list %}", 1),
        ("{% set ns.x = ('{0}' * 50000).format([['a'] * 5000]) %}", 1),
        ("{% set ns.y = (ns.x * 4000000).split('a') %}", 1),
        ("{% set ns.y = (ns.x * 4000000)|split('a') %}", 1),
        ("{% set ns.y = (ns.x * 200000).strip(ns.x * 200000) %}", 1),
        ("{% set ns.y = (ns.x * 200000)|trim(ns.x * 200000) %}", 1),
    ] {
        let source = format!(
            "{{% set ns = namespace(x='ab', y={hundred}) %}}\
            {{% for i in range({often}) %}}{make}{{% endfor %}}"
        );
        let error = render(&source).map(|text| text.len()).unwrap_err();
        assert!(error.to_string().contains("more than any has to"), "{make}: {error}");
    }
}

/// Slices of slices are lists, each as long as it says: nothing is done later, and again.
#[test]
fn no_value_waits_to_be_made() {
    for lazy in [
        "ns.y[0:]",
        "ns.y[::-1]",
        "ns.y + []",
        "ns.y * 1",
        "ns.y|reverse",
        "ns.y|chain([])",
        "[ns.y]|map('reverse')|first",
    ] {
        let rounds = |rounds: usize| {
            render(&format!(
                "{{% set ns = namespace(y=range(1000)|list) %}}{{% for i in range({rounds}) %}}\
                {{% set ns.y = {lazy} %}}{{% endfor %}}{{{{ ns.y|length }}}}"
            ))
        };
        // The items are paid for each time: where they are made by whoever looks, a round is cheap.
        assert_eq!(rounds(6).unwrap(), "1000", "{lazy}");
        let error = rounds(400).unwrap_err();
        assert!(error.to_string().contains("more than any has to"), "{lazy}: {error}");
    }
}

#[test]
fn what_each_part_of_a_list_is_asked_is_paid_for_each() {
    let ask = |filter: &str, n: usize| {
        render(&format!("{{{{ (['x'] * 1000)|{filter}[1] * {n})|list|length }}}}"))
    };
    assert_eq!(ask("map('default', ", 10).unwrap_or_default(), "1000");
    let error = ask("map('default', ", 2000).unwrap_err();
    assert!(error.to_string().contains("more than any has to"), "{error}");
}

#[test]
fn slices_items_and_maps_are_pythons() {
    for (source, text) in [
        ("{{ 'abcdef'[1:4] }}{{ 'abcdef'[::-1] }}{{ 'abcdef'[-2:] }}", "bcdfedcbaef"),
        ("{{ [1, 2, 3][1:] }}{{ [1, 2, 3][:-1] }}{{ [1, 2, 3][::-2] }}", "[2, 3][1, 2][3, 1]"),
        ("{{ [1, 2, 3][5:] }}{{ [1, 2, 3][-9:2] }}{{ [1, 2, 3][2:0:-1] }}", "[][1, 2][3, 2]"),
        ("{{ (1, 2, 3)[1:] }}{{ ''[1:] }}{{ 'é中'[1:] }}{{ [1, 2][::9] }}", "(2, 3)中[1]"),
        ("{{ [1, 2][-1] }}{{ 'abc'[1] }}{{ {'a': 5}['a'] }}{{ messages[0]['role'] }}", "2b5user"),
        ("{% set k = 'x' %}{{ {k: 1, 2: [k]} }}{{ {} }}", "{'x': 1, 2: ['x']}{}"),
        (
            "{{ {'a': 1}|chain({'b': 2, 'a': 3}) }}{{ [1]|chain([2], [3]) }}",
            "{'a': 3, 'b': 2}[1, 2, 3]",
        ),
        ("{{ [1] + [2] * 2 }}{{ 'a' * 3 }}{{ (1,) + (2,) }}{{ 1 + 2 * 3 }}", "[1, 2, 2]aaa(1, 2)7"),
        (
            "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1]) }}{{ m(1, **{'b': 3}) }}",
            "1213",
        ),
        ("{{ 'a'|replace(*['a', 'b']) }}{{ [3, 1, 2]|sort(reverse=true) }}", "b[3, 2, 1]"),
        (
            "{{ 1 < 2 < 3 }}{{ 'a' in 'abc' }}{{ 3 not in [1, 2] }}{{ 1 is eq 1 }}",
            "TrueTrueTrueTrue",
        ),
        ("{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "TrueFalseTrue"),
    ] {
        assert_eq!(render(source).unwrap(), text, "{source}");
    }
    let error = render("{% set k = [1] %}{{ {k: 1} }}").unwrap_err();
    assert!(error.is_request() && error.to_string().contains("a key is"), "{error}");
}

#[test]
fn a_template_is_told_more_by_name() {
    let source = "{{ bos_token }}{% for t in tools or [] %}{{ t.name }},{% endfor %}{{ thinks }}\
        {{ messages[0].content }}";
    let template = Template::new(source, "<s>", "</s>").unwrap();
    let messages = || [json!({ "role": "user", "content": "Hello" })];
    let more = json!({ "tools": [{ "name": "a" }, { "name": "b" }], "thinks": 1,
        "bos_token": "no" });
    let text = |more: &serde_json::Value| {
        let more = more.as_object().unwrap().clone();
        block_on(template.render_with(messages(), more)).unwrap()
    };
    assert_eq!(text(&more), "<s>a,b,1Hello");
    assert_eq!(text(&json!({})), "<s>Hello");
}
