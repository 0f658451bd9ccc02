//! JavaScript and TypeScript: from syntax to what it stands for.

use tree_sitter::Node;

use super::apis::javascript::APIS;
use super::decode::unescape;
use super::flow::{Flow, ROUNDS, module_name};
use super::rules::{ESCAPE, LIMIT, NAMES, SYNTAX};
use super::value::{Taint, Value};
use super::walk::{Kid, Place, Reader, first_error, parse, walk};
use super::{Findings, Language};

/// So many names of an obfuscator's make are no accident.
const MADE_UP: usize = 6;

pub fn read(language: Language, text: &str, findings: &mut Findings<'_>) {
    let Some(tree) = parse(language, text, findings) else {
        findings.add(&LIMIT, 0, "");
        return;
    };
    let mut reader = JavaScript { text, flow: Flow::new(language, &APIS, findings), made_up: Vec::new() };
    for round in 1..=ROUNDS {
        reader.flow.begin(round == ROUNDS);
        if !walk(&tree, &mut reader) && round == ROUNDS {
            findings.add(&LIMIT, 0, "");
            return;
        }
    }
    let mut made_up = std::mem::take(&mut reader.made_up);
    made_up.sort();
    made_up.dedup_by(|a, b| a.0 == b.0);
    if let (true, Some((_, at))) = (made_up.len() >= MADE_UP, made_up.first()) {
        findings.add(&NAMES, *at, "");
    }
    if tree.root_node().has_error() && !findings.is_embedded() {
        findings.add(&SYNTAX, first_error(&tree), "");
    }
}

struct JavaScript<'f, 's, 'x> {
    text: &'x str,
    flow: Flow<'f, 's>,
    /// Names like `_0x3fa1`.
    made_up: Vec<(String, usize)>,
}

impl<'t> JavaScript<'_, '_, '_> {
    fn source(&self, node: Node<'t>) -> &str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    /// A name; escapes in it are undone as the language does.
    fn identifier(&self, node: Node<'t>) -> String {
        unescape(self.source(node))
    }

    fn string(&mut self, node: Node<'t>, kids: &[Kid<'t>]) -> Value {
        let mut value = Value::text("");
        for kid in kids {
            match kid.node.kind() {
                "string_fragment" => value = value.concat(&Value::text(self.source(kid.node))),
                "escape_sequence" => value = value.concat(&Value::text(unescape(self.source(kid.node)))),
                "template_substitution" => value = value.concat(&Value { pending: false, ..kid.value.clone() }),
                _ => {}
            }
        }
        let written = self.text.get(node.byte_range()).unwrap_or_default();
        self.flow.string(value, written, node.start_byte())
    }

    /// Binds a name or a pattern.
    fn bind(&mut self, target: Node<'t>, value: &Value) {
        self.bind_within(target, value, 0);
    }

    /// Patterns in patterns, down to where nobody writes them.
    fn bind_within(&mut self, target: Node<'t>, value: &Value, depth: usize) {
        if depth > 4 {
            return;
        }
        let declared = target.parent().is_some_and(|parent| parent.kind() == "variable_declarator");
        match target.kind() {
            "identifier" if !declared => {
                let name = self.identifier(target);
                self.flow.rebind(&name, value);
            }
            "identifier" | "shorthand_property_identifier_pattern" => {
                let name = self.identifier(target);
                self.flow.bind(&name, value);
            }
            "member_expression" => {
                let name = self.source(target).to_owned();
                if name.len() < 100 {
                    self.flow.bind_everywhere(&name, value);
                }
            }
            "object_pattern" => {
                let mut cursor = target.walk();
                let children: Vec<Node<'t>> = target.named_children(&mut cursor).collect();
                for child in children {
                    let (key, bound) = match child.kind() {
                        "pair_pattern" => (child.child_by_field_name("key"), child.child_by_field_name("value")),
                        "object_assignment_pattern" => {
                            (child.child_by_field_name("left"), child.child_by_field_name("left"))
                        }
                        "rest_pattern" => (None, child.named_child(0)),
                        _ => (Some(child), Some(child)),
                    };
                    let part = match key {
                        Some(key) => {
                            let key = self.identifier(key);
                            self.flow.index(value, &Value::text(key.trim_matches(['"', '\''])), child.start_byte())
                        }
                        None => value.clone(),
                    };
                    let bound = bound.map(|bound| {
                        if bound.kind() == "assignment_pattern" { bound.named_child(0).unwrap_or(bound) } else { bound }
                    });
                    let named = |kind: &str| kind.contains("identifier") || kind.ends_with("_pattern");
                    if let Some(bound) = bound.filter(|bound| named(bound.kind())) {
                        self.bind_within(bound, &Value { pending: false, ..part }, depth + 1);
                    }
                }
            }
            "array_pattern" => {
                let mut cursor = target.walk();
                let children: Vec<Node<'t>> = target.named_children(&mut cursor).collect();
                for (index, child) in children.into_iter().enumerate() {
                    let item = value.items.as_ref().and_then(|items| items.get(index)).cloned();
                    let item = item.unwrap_or_else(|| Value::tainted(value.taint));
                    self.bind_within(child, &item, depth + 1);
                }
            }
            _ => {}
        }
    }

    fn import(&mut self, node: Node<'t>) {
        let Some(source) = node.child_by_field_name("source") else { return };
        let module = module_name(self.source(source).trim_matches(['"', '\'']));
        let mut pending = vec![node];
        while let Some(node) = pending.pop() {
            let mut cursor = node.walk();
            for child in node.named_children(&mut cursor).collect::<Vec<_>>() {
                match child.kind() {
                    "import_clause" | "named_imports" => pending.push(child),
                    // The default export of a built-in module is the module.
                    "identifier" => {
                        let name = self.identifier(child);
                        self.flow.bind(&name, &Value::name(&module));
                    }
                    "namespace_import" => {
                        if let Some(name) = child.named_child(0).map(|name| self.identifier(name)) {
                            self.flow.bind(&name, &Value::name(&module));
                        }
                    }
                    "import_specifier" => {
                        let name =
                            child.child_by_field_name("name").map(|name| self.identifier(name)).unwrap_or_default();
                        let alias = child.child_by_field_name("alias").map(|alias| self.identifier(alias));
                        let full = if name == "default" { module.clone() } else { format!("{module}.{name}") };
                        self.flow.bind(&alias.unwrap_or(name), &Value::name(&full));
                    }
                    _ => {}
                }
            }
        }
    }

    fn call(&mut self, node: Node<'t>, callee: &Value, arguments: &[Value], is_new: bool) -> Value {
        let at = node.start_byte();
        let is_constructor = callee.member.as_ref().is_some_and(|member| &*member.1 == "constructor");
        if !is_new && is_constructor && !arguments.is_empty() {
            self.flow.found(&ESCAPE, at, "constructor(…)");
            return self.flow.call(&Value::name("Function"), arguments, at);
        }
        // Text instead of a function.
        let timer = callee.names.iter().any(|name| ["setTimeout", "setInterval", "setImmediate"].contains(&&**name));
        if timer
            && arguments.first().is_some_and(|first| {
                !first.texts.is_empty() || first.taint.has(Taint::DECODED) && first.function.is_none()
            })
        {
            return self.flow.call(&Value::name("eval"), arguments, at);
        }
        // The text of `new Function("a", "b", code)` is the last.
        let code = callee.names.iter().any(|name| &**name == "Function");
        if let (true, Some(last)) = (code && arguments.len() > 1, arguments.last()) {
            return self.flow.call(callee, std::slice::from_ref(last), at);
        }
        self.flow.call(callee, arguments, at)
    }
}

fn is_function(kind: &str) -> bool {
    matches!(
        kind,
        "function_declaration"
            | "function_expression"
            | "arrow_function"
            | "method_definition"
            | "generator_function"
            | "generator_function_declaration"
    )
}

fn is_binding(place: Place<'_>) -> bool {
    matches!(
        (place.parent, place.field),
        (
            "variable_declarator"
                | "function_declaration"
                | "function_expression"
                | "class_declaration"
                | "generator_function_declaration"
                | "class",
            Some("name"),
        ) | (
            "assignment_expression" | "for_in_statement" | "assignment_pattern" | "object_assignment_pattern",
            Some("left"),
        ) | ("arrow_function", Some("parameter"))
            | (
                "formal_parameters"
                    | "rest_pattern"
                    | "array_pattern"
                    | "import_clause"
                    | "namespace_import"
                    | "import_specifier"
                    | "object_pattern",
                _,
            )
            | ("pair_pattern", _)
            | ("required_parameter" | "optional_parameter", Some("pattern" | "name"))
            | ("catch_clause", Some("parameter"))
            | ("labeled_statement" | "break_statement" | "continue_statement", Some("label"))
    )
}

impl<'t> Reader<'t> for JavaScript<'_, '_, '_> {
    fn enter(&mut self, node: Node<'t>) {
        if is_function(node.kind()) {
            self.flow.enter_function(node.start_byte());
            let single = node.child_by_field_name("parameter");
            let list = node.child_by_field_name("parameters");
            let mut names: Vec<Node<'t>> = single.into_iter().collect();
            if let Some(list) = list {
                let mut cursor = list.walk();
                names.extend(list.named_children(&mut cursor));
            }
            for parameter in names {
                let name = match parameter.kind() {
                    "identifier" => Some(parameter),
                    "assignment_pattern" => parameter.child_by_field_name("left"),
                    "required_parameter" | "optional_parameter" => parameter.child_by_field_name("pattern"),
                    _ => None,
                };
                // A pattern takes a place of its own, and its names get the parts of what is there.
                let pattern = name.unwrap_or(parameter);
                let name = name.filter(|name| name.kind() == "identifier").map(|name| self.identifier(name));
                let place = name.clone().unwrap_or_else(|| format!("#{}", parameter.start_byte()));
                self.flow.parameter(&place);
                if let (None, Some(value)) = (name, self.flow.known(&place).cloned()) {
                    self.bind(pattern, &value);
                }
            }
        }
        if node.kind() == "import_statement" {
            self.import(node);
        }
    }

    fn exit(&mut self, node: Node<'t>, place: Place<'t>, kids: Vec<Kid<'t>>) -> Value {
        let at = node.start_byte();
        let kind = node.kind();
        let consumes = matches!(
            kind,
            "member_expression"
                | "call_expression"
                | "new_expression"
                | "subscript_expression"
                | "parenthesized_expression"
                | "await_expression"
                | "sequence_expression"
                | "as_expression"
                | "non_null_expression"
                | "satisfies_expression"
                | "object_pattern"
                | "import_statement"
        );
        // A name that is bound as it is keeps its use for later: `const { env } = process`.
        let renames = kind == "variable_declarator" && kids.iter().any(|kid| kid.node.kind() == "object_pattern");
        if !consumes && !renames {
            for kid in &kids {
                self.flow.refer(&kid.value, kid.node.start_byte());
            }
        }
        let kid = |field: &str| kids.iter().find(|kid| kid.field == Some(field));
        let value = |field: &str| kid(field).map(|kid| kid.value.clone()).unwrap_or_default();
        if is_function(kind) {
            if kind == "arrow_function"
                && let Some(body) = kid("body").filter(|body| body.node.kind() != "statement_block")
            {
                let body = Value { pending: false, ..body.value.clone() };
                self.flow.returns(&body);
            }
            let function = self.flow.leave_function();
            if let Some(name) = kid("name").map(|kid| self.identifier(kid.node)).filter(|_| kind != "method_definition")
            {
                self.flow.bind(&name, &function);
            }
            return function;
        }
        match kind {
            "identifier" | "shorthand_property_identifier" => {
                let name = self.identifier(node);
                if name.len() > 5 && name.starts_with("_0x") && self.flow.reports && self.made_up.len() < 10_000 {
                    self.made_up.push((name.clone(), at));
                }
                if is_binding(place) {
                    return Value::default();
                }
                let global = match name.as_str() {
                    "globalThis" | "global" | "window" | "self" => "()".to_owned(),
                    "undefined" => return Value::default(),
                    "__dirname" => return Value::text("."),
                    name => name.to_owned(),
                };
                self.flow.look_up(&name, Some(global))
            }
            "import" => Value { pending: true, ..Value::name("import") },
            "member_expression" => {
                let Some(name) = kid("property").map(|kid| self.identifier(kid.node)) else { return Value::default() };
                let of = value("object");
                // The left side of an assignment is no use of it.
                let assigned = (place.parent, place.field) == ("assignment_expression", Some("left"));
                if assigned {
                    self.flow.assign_member(&of, &name, at);
                    return Value::default();
                }
                let written = self.text.get(node.byte_range()).unwrap_or_default();
                self.flow.member_as_written(&of, &name, written, at)
            }
            "subscript_expression" => {
                let (of, key) = (value("object"), value("index"));
                if (place.parent, place.field) == ("assignment_expression", Some("left")) {
                    self.flow.assign_index(&of, &key, at);
                    return Value::default();
                }
                self.flow.index(&of, &key, at)
            }
            "call_expression" | "new_expression" => {
                let callee = value(if kind == "call_expression" { "function" } else { "constructor" });
                let list = kid("arguments").map(|kid| kid.value.to_list()).unwrap_or_default();
                let mut result = self.call(node, &callee, &list, kind == "new_expression");
                result.pending = !result.names.is_empty()
                    && callee.names.iter().any(|name| ["require", "import"].contains(&&**name));
                result
            }
            "arguments" | "array" | "object" => {
                let named = |kid: &Kid<'t>| {
                    let label = match kid.node.kind() {
                        "shorthand_property_identifier" => Some(self.source(kid.node).into()),
                        _ => kid.value.label.clone(),
                    };
                    Value { pending: false, label, ..kid.value.clone() }
                };
                Value::list(kids.iter().map(named).collect())
            }
            "pair" => {
                let label = kid("key").map(|key| match key.value.whole_text() {
                    Some(text) => text.into(),
                    None => self.source(key.node).into(),
                });
                let off = kid("value").is_some_and(|kid| kid.node.kind() == "false");
                Value { label: if off { Some("".into()) } else { label }, pending: false, ..value("value") }
            }
            "string" | "template_string" => self.string(node, &kids),
            "number" => Value::integer(self.source(node)),
            "binary_expression" => {
                let (left, right) = (value("left"), value("right"));
                let operator = node.child_by_field_name("operator").map_or("", |node| node.kind());
                match operator {
                    "+" => left.concat(&right),
                    "^" => Value::tainted(left.taint.with(right.taint).with(Taint::DECODED)),
                    "||" | "??" | "&&" => {
                        let mut sum = left;
                        sum.merge(&right);
                        sum.pending = false;
                        sum
                    }
                    _ => Value::tainted(left.taint.with(right.taint)),
                }
            }
            "variable_declarator" | "assignment_expression" => {
                let of =
                    Value { pending: false, ..value(if kind == "variable_declarator" { "value" } else { "right" }) };
                let target = node.child_by_field_name(if kind == "variable_declarator" { "name" } else { "left" });
                if let Some(target) = target {
                    self.bind(target, &of);
                }
                of
            }
            "augmented_assignment_expression" => {
                let sum = value("left").concat(&value("right"));
                if let Some(target) = node.child_by_field_name("left") {
                    self.bind(target, &sum);
                }
                Value::default()
            }
            "for_in_statement" => {
                let element = value("right").element();
                if let Some(target) = node.child_by_field_name("left") {
                    self.bind(target, &element);
                }
                Value::default()
            }
            "return_statement" | "yield_expression" => {
                if let Some(kid) = kids.first() {
                    let of = Value { pending: false, ..kid.value.clone() };
                    self.flow.returns(&of);
                }
                Value::default()
            }
            "sequence_expression" => {
                let count = kids.len().saturating_sub(1);
                for kid in kids.iter().take(count) {
                    self.flow.refer(&kid.value, kid.node.start_byte());
                }
                kids.into_iter().next_back().map(|kid| kid.value).unwrap_or_default()
            }
            "parenthesized_expression"
            | "await_expression"
            | "as_expression"
            | "non_null_expression"
            | "satisfies_expression"
            | "template_substitution" => kids.into_iter().next().map(|kid| kid.value).unwrap_or_default(),
            "ternary_expression" => {
                let mut sum = value("consequence");
                sum.merge(&value("alternative"));
                sum.pending = false;
                sum
            }
            "program" | "statement_block" | "expression_statement" | "comment" => Value::default(),
            _ => Value::tainted(kids.iter().fold(Taint::default(), |taint, kid| taint.with(kid.value.taint))),
        }
    }

    fn stop(&self) -> bool {
        self.flow.stop()
    }
}

/// The tree of JavaScript, for whoever wants to know more about it; `None` when that took too long.
pub fn javascript_tree(text: &str) -> Option<tree_sitter::Tree> {
    let declared = super::Declared::default();
    parse(Language::JavaScript, text, &Findings::new("", &declared))
}
