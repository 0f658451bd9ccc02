//! JavaScript that waits or imports at its top level, in a context: a module would keep its declarations for itself.
//!
//! Such code becomes the body of an async function, and what it declares becomes the context's, as in Node's own prompt. No
//! line moves. Whatever is not plainly to be rewritten stays a module, which then says itself what is wrong with it.

use std::ops::Range;

use serde::Serialize;
use tree_sitter::Node;

use crate::skills::scan;

/// Longer code is not looked into.
const MAX_TEXT: usize = 256 << 10;

/// More names are not looked into either: each is compared with each.
const MAX_NAMES: usize = 2000;

/// What the runner is told about code.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Look {
    /// Only a module or a rewritten one can be meant: a script takes `await (x)` for a call.
    pub waits: bool,
    /// Where the last statement stands when it is an expression, in UTF-16 units as JavaScript counts them.
    pub last: Option<(usize, usize)>,
    pub hoisted: Option<Hoisted>,
}

/// Code whose declarations are its context's.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Hoisted {
    /// An async function with one parameter.
    pub code: String,
    /// Characters before the first of the code itself.
    pub shift: usize,
    /// `let` or `var`, the name, and its line.
    pub names: Vec<(&'static str, String, usize)>,
}

/// Looks into code; rewrites it where it `stays`.
pub(super) fn look(text: &str, stays: bool) -> Look {
    let mut look = Look::default();
    // A script gives its value, and keeps its names, by itself.
    if text.len() > MAX_TEXT || !["await", "import", "export"].iter().any(|word| text.contains(word)) {
        return look;
    }
    let Some(tree) = scan::javascript_tree(text) else { return look };
    let root = tree.root_node();
    if root.has_error() {
        return look;
    }
    let mut cursor = root.walk();
    let last = root.named_children(&mut cursor).filter(|node| !node.is_extra()).last();
    let last = last.filter(|last| last.kind() == "expression_statement").and_then(|last| last.named_child(0));
    let last = last.map(|expression| expression.byte_range());
    let units = |end: usize| text.get(..end).map(|text| text.encode_utf16().count());
    look.last = last.clone().and_then(|last| Some((units(last.start)?, units(last.end)?)));
    let mut rewrite = Rewrite { text, ..Rewrite::default() };
    rewrite.walk(root);
    look.waits = rewrite.waits;
    look.hoisted = stays.then(|| rewrite.finish(last)).flatten();
    look
}

#[derive(Debug, Default)]
struct Rewrite<'t> {
    text: &'t str,
    edits: Vec<(Range<usize>, String)>,
    names: Vec<(&'static str, String, usize)>,
    functions: Vec<&'t str>,
    imports: String,
    waits: bool,
    /// Something that cannot be rewritten.
    odd: bool,
}

impl<'t> Rewrite<'t> {
    /// Depth costs memory, not stack: the code is anybody's.
    fn walk(&mut self, root: Node<'t>) {
        // Whether it stands at the top, and whether in a function.
        let mut stack = vec![(root, false, false)];
        while let Some((node, top, mut inside)) = stack.pop() {
            let mut cursor = node.walk();
            match node.kind() {
                "hash_bang_line" => self.edit(node.start_byte()..node.start_byte() + 2, "//"),
                "import_statement" => {
                    self.import(node);
                    continue;
                }
                "export_statement" => self.export(node),
                "lexical_declaration" if top => self.declare(node, "let"),
                "variable_declaration" if !inside => self.declare(node, "var"),
                "class_declaration" if top => {
                    let name = node.child_by_field_name("name");
                    self.edit(node.start_byte()..node.start_byte(), format!("{}=", self.of(name)));
                    self.edit(node.end_byte()..node.end_byte(), ";");
                    self.odd |= node.child_by_field_name("decorator").is_some();
                    self.bind(name, "let");
                }
                "function_declaration" | "generator_function_declaration" if top => {
                    let name = node.child_by_field_name("name");
                    self.functions.push(self.of(name));
                    self.bind(name, "var");
                }
                "for_in_statement" if !inside => {
                    let kind = node.child_by_field_name("kind").filter(|kind| self.of(Some(*kind)) == "var");
                    if let Some(kind) = kind {
                        self.edit(kind.byte_range(), "");
                        self.bind(node.child_by_field_name("left"), "var");
                    }
                    self.waits |= node.children(&mut cursor).any(|child| child.kind() == "await");
                }
                "await_expression" => self.waits |= !inside,
                // With brackets behind it, it is read as a call.
                "identifier" if self.of(Some(node)) == "await" => self.waits |= !inside,
                "return_statement" | "using_declaration" => self.odd |= !inside,
                "meta_property" if self.of(Some(node)).starts_with("import") => {
                    self.edit(node.byte_range(), "__ringfence.meta");
                }
                _ => {}
            }
            inside |= matches!(
                node.kind(),
                "function_declaration"
                    | "function_expression"
                    | "generator_function_declaration"
                    | "generator_function"
                    | "arrow_function"
                    | "method_definition"
                    | "class_body"
            );
            let top = matches!(node.kind(), "program" | "export_statement");
            stack.extend(reversed(node).into_iter().map(|child| (child, top, inside)));
        }
    }

    fn of(&self, node: Option<Node<'t>>) -> &'t str {
        node.and_then(|node| self.text.get(node.byte_range())).unwrap_or_default()
    }

    /// Lines stay.
    fn edit(&mut self, at: Range<usize>, by: impl Into<String>) {
        let gone = self.text.get(at.clone()).unwrap_or_default();
        let by = by.into() + &"\n".repeat(gone.matches('\n').count());
        self.edits.push((at, by));
    }

    /// Every name in a pattern becomes the context's.
    fn bind(&mut self, pattern: Option<Node<'t>>, kind: &'static str) {
        let mut stack: Vec<Node<'t>> = pattern.into_iter().collect();
        while let Some(node) = stack.pop() {
            match node.kind() {
                "identifier" | "shorthand_property_identifier_pattern" => {
                    self.names.push((kind, self.of(Some(node)).to_owned(), node.start_position().row + 1));
                }
                "pair_pattern" => stack.extend(node.child_by_field_name("value")),
                "assignment_pattern" | "object_assignment_pattern" => stack.extend(node.child_by_field_name("left")),
                "object_pattern" | "array_pattern" | "rest_pattern" => stack.extend(reversed(node)),
                "comment" => {}
                _ => self.odd = true,
            }
        }
    }

    /// `const {a} = b, c = d` becomes `void ( {a} = b, c = d)`.
    fn declare(&mut self, node: Node<'t>, kind: &'static str) {
        let Some(word) = node.child(0) else { return };
        self.edit(word.byte_range(), "void (");
        let mut cursor = node.walk();
        let declarators: Vec<Node<'t>> =
            node.named_children(&mut cursor).filter(|child| child.kind() == "variable_declarator").collect();
        for declarator in &declarators {
            self.bind(declarator.child_by_field_name("name"), kind);
            // Declared again without a value, `let` has none, and `var` keeps its own.
            if kind == "let" && declarator.child_by_field_name("value").is_none() {
                self.edit(declarator.end_byte()..declarator.end_byte(), "=void 0");
            }
        }
        let in_for = node.parent().is_some_and(|parent| parent.kind() == "for_statement");
        if let Some(last) = declarators.last() {
            self.edit(last.end_byte()..last.end_byte(), if in_for { ")" } else { ");" });
        }
    }

    /// Imports come first, wherever they stand.
    fn import(&mut self, node: Node<'t>) {
        self.waits = true;
        // What stands around it must not grow together.
        self.edit(node.byte_range(), ";");
        let mut cursor = node.walk();
        self.odd |= node.named_children(&mut cursor).any(|child| child.kind() == "import_attribute");
        let source = self.of(node.child_by_field_name("source"));
        let (mut taken, mut asked, mut whole) = (Vec::new(), Vec::new(), "");
        let mut stack = reversed(node);
        while let Some(part) = stack.pop() {
            match part.kind() {
                "import_clause" | "named_imports" => stack.extend(reversed(part)),
                "identifier" => {
                    taken.push(format!("default:{}", self.of(Some(part))));
                    asked.push("\"default\"".to_owned());
                    self.bind(Some(part), "let");
                }
                "namespace_import" => {
                    whole = self.of(part.named_child(0));
                    self.bind(part.named_child(0), "let");
                }
                "import_specifier" => {
                    let name = part.child_by_field_name("name");
                    let alias = part.child_by_field_name("alias").or(name);
                    let text = self.of(name);
                    taken.push(format!("{text}:{}", self.of(alias)));
                    asked.push(if text.starts_with(['"', '\'']) { text.to_owned() } else { format!("{text:?}") });
                    self.bind(alias, "let");
                }
                _ => {}
            }
        }
        let load = format!("await __ringfence.load({source},[{}])", asked.join(","));
        let load = if whole.is_empty() { load } else { format!("{whole}={load}") };
        self.imports += &format!("({{{}}}={load});", taken.join(","));
    }

    fn export(&mut self, node: Node<'t>) {
        self.waits = true;
        let field = |name| node.child_by_field_name(name);
        self.odd |= field("source").is_some() || field("decorator").is_some();
        match (field("declaration"), field("value")) {
            (Some(declaration), _) => self.edit(node.start_byte()..declaration.start_byte(), ""),
            (None, Some(value)) => self.edit(node.start_byte()..value.start_byte(), "__ringfence.value="),
            (None, None) => self.edit(node.byte_range(), ";"),
        }
    }

    fn finish(mut self, last: Option<Range<usize>>) -> Option<Hoisted> {
        // What is declared twice is wrong, and a module says so.
        let twice = |(kind, name, _): &(&str, String, usize)| {
            *kind == "let" && self.names.iter().filter(|(_, other, _)| other == name).count() > 1
        };
        if self.odd || !self.waits || self.names.len() > MAX_NAMES || self.names.iter().any(twice) {
            return None;
        }
        if let Some(last) = last {
            self.edits.push((last.start..last.start, "return (".to_owned()));
            // A comment may be behind it.
            self.edits.push((last.end..last.end, "\n)".to_owned()));
        }
        let head =
            format!("(async (__ringfence) => {{__ringfence.define({{{}}});{}", self.functions.join(","), self.imports);
        // Of those at one place, the outer one was made first, and so is the first to begin and the last to end.
        self.edits.sort_by_key(|(at, _)| (at.start, at.end));
        let (mut code, mut done) = (head.clone(), 0);
        for (at, by) in &self.edits {
            code += self.text.get(done..at.start)?;
            code += by;
            done = at.end;
        }
        code += self.text.get(done..)?;
        code += "\n})";
        self.names.sort_by_key(|(.., line)| *line);
        Some(Hoisted { code, shift: head.encode_utf16().count(), names: self.names })
    }
}

/// Its children, the first at the end: so a stack has them in their order.
fn reversed(node: Node<'_>) -> Vec<Node<'_>> {
    let mut children: Vec<Node<'_>> = node.named_children(&mut node.walk()).collect();
    children.reverse();
    children
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rewritten() {
        let hoisted = |text: &str| look(text, true).hoisted;
        for (text, body, names) in [
            ("const x = await f()", "void ( x = await f());", "let x 1"),
            (
                "let a,\n {b, c: [d = 1, ...e]} = await f\n(1)",
                "void ( a=void 0,\n {b, c: [d = 1, ...e]} = await f\n(1));",
                "let a 1 let b 2 let d 2 let e 2",
            ),
            ("await 1\nclass A {}", "await 1\nA=class A {};", "let A 2"),
            (
                "await 1; for (var i = 0; i < 1; i++) { var j; let k }",
                "await 1; for (void ( i = 0); i < 1; i++) { void ( j);; let k }",
                "var i 1 var j 1",
            ),
            ("for await (var x of y) {}", "for await ( x of y) {}", "var x 1"),
            ("export const x = 1", "void ( x = 1);", "let x 1"),
            ("export default {a: import.meta.url}", "__ringfence.value={a: __ringfence.meta.url}", ""),
            ("1\nimport 'x'\nf(1)", "1\n;\nreturn (f(1)\n)", ""),
            ("await (x)", "return (await (x)\n)", ""),
            ("const x = await (y)()", "void ( x = await (y)());", "let x 1"),
        ] {
            let Some(Hoisted { code, shift, names: got }) = hoisted(text) else { panic!("{text}") };
            assert_eq!(&code[shift..], format!("{body}\n}})"), "{text}");
            let got: Vec<String> = got.iter().map(|(kind, name, line)| format!("{kind} {name} {line}")).collect();
            assert_eq!(got.join(" "), names, "{text}");
        }
        let head = |text: &str| hoisted(text).map(|h| h.code[..h.shift].replace("(async (__ringfence) => {", ""));
        assert_eq!(
            head("import a, {b as c, 'd e' as f} from 'm'").as_deref(),
            Some(
                "__ringfence.define({});({default:a,b:c,'d e':f}=await __ringfence.load('m',[\"default\",\"b\",'d e']));"
            )
        );
        assert_eq!(
            head("await 1; import * as n from \"m\"; function g() {}").as_deref(),
            Some("__ringfence.define({g});({}=n=await __ringfence.load(\"m\",[]));")
        );
        // What a script can do by itself, and what is wrong or odd, is left alone.
        for text in [
            "const x = 1",
            "async function f() { await 1 }",
            "await 1; return",
            "const = await",
            "export * from 'x'",
            "await 1; let a; var a",
        ] {
            assert_eq!(hoisted(text), None, "{text}");
        }
        assert!(!look("async () => { await (1) }", false).waits && look("await (1)", false).waits);
        // Depth is no matter.
        look(&format!("await {}1{}", "[".repeat(50_000), "]".repeat(50_000)), true);
    }
}
