//! Python: from syntax to what it stands for.

use tree_sitter::Node;
use unicode_normalization::UnicodeNormalization;

use super::apis::python::APIS;
use super::decode::unescape;
use super::flow::{Flow, ROUNDS, canonical, join};
use super::rules::{BOMB, LIMIT, SYNTAX};
use super::value::{Taint, Value};
use super::walk::{Kid, Place, Reader, parse, walk};
use super::{Findings, Language};

pub fn read(text: &str, findings: &mut Findings<'_>) {
    let Some(tree) = parse(Language::Python, text, findings) else {
        findings.add(&LIMIT, 0, "");
        return;
    };
    let mut reader = Python { text, flow: Flow::new(Language::Python, &APIS, findings), loops: 0, inside: Vec::new() };
    for round in 1..=ROUNDS {
        reader.flow.begin(round == ROUNDS);
        reader.loops = 0;
        reader.inside.clear();
        if !walk(&tree, &mut reader) && round == ROUNDS {
            findings.add(&LIMIT, 0, "");
            return;
        }
    }
    if tree.root_node().has_error() && !findings.is_embedded() {
        findings.add(&SYNTAX, super::walk::first_error(&tree), "");
    }
}

struct Python<'f, 's, 'x> {
    text: &'x str,
    flow: Flow<'f, 's>,
    /// Endless loops that we are in.
    loops: usize,
    /// Classes, by name, and functions that we are in.
    inside: Vec<Option<String>>,
}

impl<'t> Python<'_, '_, '_> {
    fn source(&self, node: Node<'t>) -> &str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    fn identifier(&self, node: Node<'t>) -> String {
        let text = self.source(node);
        if text.is_ascii() { text.to_owned() } else { text.nfkc().collect() }
    }

    fn string(&mut self, node: Node<'t>, kids: &[Kid<'t>]) -> Value {
        let mut raw = false;
        let mut value = Value::text("");
        for kid in kids {
            match kid.node.kind() {
                "string_start" => raw = self.source(kid.node).contains(['r', 'R']),
                "string_content" => {
                    let source = self.source(kid.node);
                    let text = if raw { source.to_owned() } else { unescape(source) };
                    value = value.concat(&Value::text(text));
                }
                "interpolation" => {
                    value = value.concat(&Value { pending: false, ..kid.value.clone() });
                }
                _ => {}
            }
        }
        let written = self.text.get(node.byte_range()).unwrap_or_default();
        self.flow.string(value, written, node.start_byte())
    }

    /// Binds what stands on the left of `=`.
    fn bind(&mut self, target: Node<'t>, value: &Value) {
        match target.kind() {
            "identifier" => {
                let name = self.identifier(target);
                self.flow.bind(&name, value);
                if let Some(Some(class)) = self.inside.last() {
                    for of in [class, "self", "cls"] {
                        self.flow.bind_everywhere(&format!("{of}.{name}"), value);
                    }
                }
            }
            "attribute" => {
                let name = self.source(target).to_owned();
                if name.len() < 100 {
                    self.flow.bind_everywhere(&name, value);
                }
            }
            "pattern_list" | "tuple_pattern" | "list_pattern" | "as_pattern_target" | "expression_list" | "tuple"
            | "list" => {
                let mut cursor = target.walk();
                for (index, child) in target.named_children(&mut cursor).enumerate() {
                    let item = match &value.items {
                        Some(items) => items.get(index).cloned().unwrap_or_default(),
                        None if target.kind() == "as_pattern_target" => value.clone(),
                        None => Value::tainted(value.taint),
                    };
                    // One step down only: patterns in patterns keep their origin.
                    match child.kind() {
                        "identifier" | "attribute" => self.bind(child, &item),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn import(&mut self, node: Node<'t>) {
        let module = node.child_by_field_name("module_name").map(|node| self.source(node).replace(' ', ""));
        let mut cursor = node.walk();
        let names: Vec<Node<'t>> = node.children_by_field_name("name", &mut cursor).collect();
        for name in names {
            let (path, alias) = match name.kind() {
                "aliased_import" => (name.child_by_field_name("name"), name.child_by_field_name("alias")),
                _ => (Some(name), None),
            };
            let Some(path) = path.map(|path| self.identifier(path).replace(' ', "")) else { continue };
            let alias = alias.map(|alias| self.identifier(alias));
            match (&module, alias) {
                (Some(module), alias) => {
                    let full = format!("{module}.{path}");
                    self.flow.bind(&alias.unwrap_or(path), &Value::name(canonical(&full)));
                }
                (None, Some(alias)) => self.flow.bind(&alias, &Value::name(&path)),
                (None, None) => {
                    let top = path.split('.').next().unwrap_or_default();
                    self.flow.bind(top, &Value::name(top));
                }
            }
        }
        let mut cursor = node.walk();
        if let Some(module) = module
            && node.named_children(&mut cursor).any(|child| child.kind() == "wildcard_import")
            && self.flow.stars.len() < 32
        {
            self.flow.stars.push(module.into());
        }
    }

    fn binary(&mut self, node: Node<'t>, kids: &[Kid<'t>]) -> Value {
        let [left, right] = kids else { return Value::default() };
        let (left, right) = (&left.value, &right.value);
        let operator = node.child_by_field_name("operator").map_or("", |node| node.kind());
        match operator {
            "+" => left.concat(right),
            "/" if left.names.iter().any(|name| &**name == "pathlib.Path()") => {
                Value { names: left.names.clone(), ..join(&[left.clone(), right.clone()]) }
            }
            "%" => {
                let fill = right.first_text().unwrap_or("\u{0}").to_owned();
                left.map(|text| text.replacen("%s", &fill, 1).replace("%s", "\u{0}")).with(right.taint)
            }
            "*" => Value::tainted(left.taint.with(right.taint)),
            "^" => Value::tainted(left.taint.with(right.taint).with(Taint::DECODED)),
            "|" | "&" | "-" | "//" | "**" | "<<" | ">>" | "@" => Value::tainted(left.taint.with(right.taint)),
            _ => Value::tainted(left.taint.with(right.taint)),
        }
    }
}

/// Whether an identifier at this place names something new instead of using it.
fn is_binding(place: Place<'_>) -> bool {
    matches!(
        (place.parent, place.field),
        ("keyword_argument" | "function_definition" | "class_definition" | "named_expression", Some("name"))
            | ("attribute", Some("attribute"))
            | ("assignment" | "for_statement" | "for_in_clause", Some("left"))
            | (
                "parameters"
                    | "lambda_parameters"
                    | "dotted_name"
                    | "aliased_import"
                    | "pattern_list"
                    | "tuple_pattern",
                _,
            )
            | ("default_parameter" | "typed_default_parameter", Some("name"))
            | (
                "typed_parameter"
                    | "list_splat_pattern"
                    | "dictionary_splat_pattern"
                    | "as_pattern_target"
                    | "global_statement"
                    | "nonlocal_statement"
                    | "del_statement",
                _,
            )
    )
}

impl<'t> Reader<'t> for Python<'_, '_, '_> {
    fn enter(&mut self, node: Node<'t>) {
        match node.kind() {
            "class_definition" => {
                let name = node.child_by_field_name("name").map(|name| self.identifier(name));
                self.inside.push(Some(name.unwrap_or_default()));
            }
            "function_definition" | "lambda" => {
                self.inside.push(None);
                self.flow.enter_function(node.start_byte());
                let Some(parameters) = node.child_by_field_name("parameters") else { return };
                let mut cursor = parameters.walk();
                let names: Vec<Node<'t>> = parameters.named_children(&mut cursor).collect();
                for parameter in names {
                    let name = match parameter.kind() {
                        "identifier" => Some(parameter),
                        "default_parameter" | "typed_default_parameter" => parameter.child_by_field_name("name"),
                        _ => parameter.named_child(0),
                    };
                    if let Some(name) = name.map(|name| self.identifier(name)) {
                        self.flow.parameter(&name);
                    }
                }
            }
            "while_statement" => {
                let condition = node.child_by_field_name("condition").map_or("", |node| self.source(node));
                self.loops += usize::from(["True", "1", "(True)"].contains(&condition));
            }
            "import_statement" | "import_from_statement" => self.import(node),
            _ => {}
        }
    }

    fn exit(&mut self, node: Node<'t>, place: Place<'t>, kids: Vec<Kid<'t>>) -> Value {
        let at = node.start_byte();
        let kind = node.kind();
        // What uses names in a way of its own; everywhere else they are merely handed on.
        let consumes = matches!(
            kind,
            "attribute"
                | "call"
                | "subscript"
                | "parenthesized_expression"
                | "await"
                | "keyword_argument"
                | "decorator"
        );
        if !consumes {
            for kid in &kids {
                self.flow.refer(&kid.value, kid.node.start_byte());
            }
        }
        let kid = |field: &str| kids.iter().find(|kid| kid.field == Some(field));
        let value = |field: &str| kid(field).map(|kid| kid.value.clone()).unwrap_or_default();
        match kind {
            "identifier" => {
                if is_binding(place) {
                    return Value::default();
                }
                let name = self.identifier(node);
                let global = if name == "__builtins__" { "builtins".to_owned() } else { format!("builtins.{name}") };
                self.flow.look_up(&name, Some(global))
            }
            "attribute" => {
                let Some(name) = kid("attribute").map(|kid| self.identifier(kid.node)) else { return Value::default() };
                let of = value("object");
                let written = self.text.get(node.byte_range()).unwrap_or_default();
                self.flow.member_as_written(&of, &name, written, at)
            }
            "subscript" => {
                let of = value("value");
                let key = kid("subscript");
                if let Some(slice) = key.filter(|key| key.node.kind() == "slice") {
                    let reversed = self.source(slice.node).replace(' ', "") == "::-1";
                    let turned = of.map(|text| text.chars().rev().collect());
                    return if reversed { turned.with(Taint::DECODED) } else { Value::tainted(of.taint) };
                }
                let key = key.map(|key| key.value.clone()).unwrap_or_default();
                let mut value = self.flow.index(&of, &key, at);
                if (place.parent, place.field) == ("assignment", Some("left")) {
                    self.flow.assign_index(&of, &key, at);
                    value.pending = false;
                }
                value
            }
            "call" => {
                let callee = value("function");
                let list = kid("arguments").map(|kid| kid.value.to_list()).unwrap_or_default();
                if self.loops > 0 && callee.names.iter().any(|name| &**name == "os.fork") {
                    self.flow.found(&BOMB, at, "os.fork");
                }
                // `map(chr, [...])`: each of them, by the function.
                if callee.names.iter().any(|name| &**name == "builtins.map")
                    && let [by, of] = &list[..]
                {
                    return self.map(by, of, at);
                }
                let mut result = self.flow.call(&callee, &list, at);
                result.pending = false;
                result
            }
            "argument_list" | "list" | "tuple" | "set" | "expression_list" | "dictionary" => {
                let named = |kid: &Kid<'t>| Value { pending: false, ..kid.value.clone() };
                Value::list(kids.iter().map(named).collect())
            }
            "generator_expression" | "list_comprehension" | "set_comprehension" => {
                let each = kids.iter().fold(Taint::default(), |taint, kid| taint.with(kid.value.taint));
                Value::tainted(each)
            }
            "keyword_argument" => {
                let of = value("value");
                self.flow.refer(&of, at);
                let label = kid("name").map(|kid| self.source(kid.node).into());
                // `shell=False` is as if it was not there.
                let off = kid("value").is_some_and(|kid| ["False", "None"].contains(&self.source(kid.node)));
                Value { label: if off { Some("".into()) } else { label }, pending: false, ..of }
            }
            "pair" => {
                let label = kid("key").and_then(|kid| kid.value.whole_text().map(Into::into));
                Value { label, pending: false, ..value("value") }
            }
            "string" => self.string(node, &kids),
            "concatenated_string" => kids.iter().fold(Value::text(""), |sum, kid| sum.concat(&kid.value)),
            "interpolation" => Value { pending: false, ..value("expression") },
            "integer" => Value::integer(self.source(node)),
            "unary_operator" => Value {
                number: kids.first().and_then(|kid| kid.value.number).and_then(i64::checked_neg),
                ..Value::default()
            },
            "binary_operator" => self.binary(node, &kids),
            "assignment" | "named_expression" => {
                let of = Value { pending: false, ..value(if kind == "assignment" { "right" } else { "value" }) };
                let target = node.child_by_field_name(if kind == "assignment" { "left" } else { "name" });
                if let Some(target) = target {
                    self.bind(target, &of);
                    if target.kind() == "attribute"
                        && let Some(left) = kid("left")
                        && let Some(member) = &left.value.member
                    {
                        let (object, name) = &**member;
                        self.flow.assign_member(object, name, at);
                    }
                }
                of
            }
            "augmented_assignment" => {
                let sum = value("left").concat(&value("right"));
                if let Some(target) = node.child_by_field_name("left") {
                    self.bind(target, &sum);
                }
                Value::default()
            }
            "for_statement" | "for_in_clause" => {
                let element = value("right").element();
                if let Some(target) = node.child_by_field_name("left") {
                    self.bind(target, &element);
                }
                Value::tainted(element.taint)
            }
            "as_pattern" => {
                let of = kids.first().map(|kid| Value { pending: false, ..kid.value.clone() }).unwrap_or_default();
                if let Some(target) = node.child_by_field_name("alias") {
                    self.bind(target, &of);
                }
                of
            }
            "while_statement" => {
                let condition = kid("condition").map_or("", |kid| self.source(kid.node));
                self.loops -= usize::from(["True", "1", "(True)"].contains(&condition)).min(self.loops);
                Value::default()
            }
            "return_statement" | "yield" => {
                if let Some(kid) = kids.first() {
                    let of = Value { pending: false, ..kid.value.clone() };
                    self.flow.returns(&of);
                }
                Value::default()
            }
            "function_definition" => {
                self.inside.pop();
                let function = self.flow.leave_function();
                if let Some(name) = kid("name").map(|kid| self.identifier(kid.node)) {
                    self.flow.bind(&name, &function);
                }
                Value::default()
            }
            "class_definition" => {
                self.inside.pop();
                if let Some(name) = kid("name").map(|kid| self.identifier(kid.node)) {
                    self.flow.bind(&name, &Value::default());
                }
                Value::default()
            }
            "lambda" => {
                self.inside.pop();
                let body = Value { pending: false, ..value("body") };
                self.flow.returns(&body);
                self.flow.leave_function()
            }
            "parenthesized_expression" | "await" => {
                kids.into_iter().next_back().map(|kid| kid.value).unwrap_or_default()
            }
            "conditional_expression" | "boolean_operator" => {
                let mut sum = Value::default();
                kids.iter().for_each(|kid| sum.merge(&kid.value));
                sum
            }
            "decorator" => {
                // A decorator is called with what it decorates.
                if let Some(kid) = kids.first() {
                    self.flow.call(&kid.value, &[Value::default()], at);
                }
                Value::default()
            }
            "module"
            | "block"
            | "expression_statement"
            | "comment"
            | "string_start"
            | "string_content"
            | "string_end" => Value::default(),
            _ => Value::tainted(kids.iter().fold(Taint::default(), |taint, kid| taint.with(kid.value.taint))),
        }
    }

    fn stop(&self) -> bool {
        self.flow.stop()
    }
}

impl Python<'_, '_, '_> {
    fn map(&mut self, by: &Value, of: &Value, at: usize) -> Value {
        match &of.items {
            Some(items) if items.len() <= 4096 => {
                let results = items.iter().map(|item| self.flow.call(by, std::slice::from_ref(item), at)).collect();
                Value::list(results)
            }
            _ => {
                let element = of.element();
                self.flow.call(by, &[element], at)
            }
        }
    }
}
