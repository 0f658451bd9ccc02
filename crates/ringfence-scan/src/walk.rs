//! Parses within a time limit, and walks a tree of any depth without recursion.

use std::ops::ControlFlow;

use tree_sitter::{Node, ParseOptions, Parser, Tree};

use super::value::Value;
use super::{Findings, Language};

/// A child that was read already, with what it stands for.
#[derive(Debug)]
pub struct Kid<'t> {
    pub field: Option<&'t str>,
    pub node: Node<'t>,
    pub value: Value,
}

/// Reads nodes: `enter` from the top down, `exit` from the bottom up.
pub trait Reader<'t> {
    fn enter(&mut self, node: Node<'t>);
    fn exit(&mut self, node: Node<'t>, place: Place<'t>, kids: Vec<Kid<'t>>) -> Value;
    /// Whether to stop: time is up.
    fn stop(&self) -> bool;
}

/// Where a node stands in its parent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place<'t> {
    pub parent: &'t str,
    pub field: Option<&'t str>,
}

/// The tree of a text; `None` when that took too long.
pub fn parse(language: Language, text: &str, findings: &Findings<'_>) -> Option<Tree> {
    let grammar = match language {
        Language::Python => tree_sitter_python::LANGUAGE.into(),
        Language::JavaScript => tree_sitter_javascript::LANGUAGE.into(),
        Language::TypeScript => tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(),
        Language::Bash => tree_sitter_bash::LANGUAGE.into(),
    };
    let mut parser = Parser::new();
    parser.set_language(&grammar).ok()?;
    let mut progress = |_: &_| if findings.out_of_time() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let options = ParseOptions::new().progress_callback(&mut progress);
    let bytes = text.as_bytes();
    parser.parse_with_options(&mut |at, _| bytes.get(at..).unwrap_or_default(), None, Some(options))
}

/// Walks the whole tree. Depth costs memory of ours, not stack. `false` when it was stopped.
pub fn walk<'t>(tree: &'t Tree, reader: &mut impl Reader<'t>) -> bool {
    struct Frame<'t> {
        node: Node<'t>,
        field: Option<&'t str>,
        kids: Vec<Kid<'t>>,
    }
    let mut cursor = tree.walk();
    let mut stack: Vec<Frame<'t>> = Vec::new();
    let mut visited = 0_u32;
    loop {
        visited = visited.wrapping_add(1);
        if visited.is_multiple_of(1024) && reader.stop() {
            return false;
        }
        let node = cursor.node();
        if node.is_named() {
            reader.enter(node);
        }
        stack.push(Frame { node, field: cursor.field_name(), kids: Vec::new() });
        if cursor.goto_first_child() {
            continue;
        }
        loop {
            let Some(frame) = stack.pop() else { return true };
            if frame.node.is_named() && !frame.node.is_extra() {
                let place = Place { parent: stack.last().map_or("", |parent| parent.node.kind()), field: frame.field };
                let value = reader.exit(frame.node, place, frame.kids);
                if let Some(parent) = stack.last_mut() {
                    parent.kids.push(Kid { field: frame.field, node: frame.node, value });
                }
            }
            if stack.is_empty() {
                return true;
            }
            if cursor.goto_next_sibling() {
                break;
            }
            cursor.goto_parent();
        }
    }
}

/// Where the first thing stands that was not understood.
pub fn first_error(tree: &Tree) -> usize {
    let mut cursor = tree.walk();
    loop {
        let node = cursor.node();
        if node.is_error() || node.is_missing() {
            return node.start_byte();
        }
        if node.has_error() && cursor.goto_first_child() {
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return 0;
            }
        }
    }
}
