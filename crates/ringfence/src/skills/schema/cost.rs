//! What checking inputs may cost, found from the schema alone: the check runs here, outside every sandbox and limit.
//!
//! The parts of a schema are a graph: a part leads to others for the same value (`allOf`, `$ref` …) or for a member of it
//! (`properties`, `items` …). Without a circle, each value is looked at as often as there are ways through the graph. With one,
//! that doubles at every level of the inputs as soon as two ways lead round for the same member; where it is one way at most,
//! which is what trees and lists need, the time is in proportion to the inputs.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::work::Patterns;

/// Parts that a schema may have, each counted as often as it is used.
const MAX_PARTS: u64 = 10_000;
/// Parts in a row that look at the same value: each takes some of the stack, for each level of the inputs.
const MAX_ROW: usize = 64;
/// What is remembered while it is looked at.
const MAX_WAYS: usize = 1_000_000;

/// Which part of a value an edge leads to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Member<'a> {
    /// The value itself.
    Itself,
    Property(&'a str),
    /// Properties whose name a pattern matches: which ones is not known.
    Matching,
    OtherProperties,
    Name,
    Item(usize),
    OtherItems,
    /// Any items, whatever else looks at them.
    SomeItem,
    /// What nothing else looked at.
    UnevaluatedProperties,
    UnevaluatedItems,
}

/// A way round: from which member, said by which part.
type Way<'a> = (&'a Member<'a>, usize);

impl Member<'_> {
    /// Whether it stands for more than one member, of properties or of items.
    fn is_wide(&self) -> bool {
        !matches!(self, Member::Itself | Member::Property(_) | Member::Name | Member::Item(_))
    }

    pub fn is_item(&self) -> bool {
        matches!(self, Member::Item(_) | Member::OtherItems | Member::SomeItem | Member::UnevaluatedItems)
    }
}

/// Whether two of the ways, which are sorted, may lead from the same member.
fn meet(ways: &[Way<'_>]) -> bool {
    let meets = |(wide, by): &Way<'_>, (other, other_by): &Way<'_>| {
        // Only the part itself knows what the others of its members are.
        let apart =
            by == other_by && !matches!((wide, other), (Member::Matching, Member::Property(_)) | (Member::SomeItem, _));
        wide != other && **other != Member::Name && wide.is_item() == other.is_item() && !apart
    };
    ways.windows(2).any(|pair| pair[0].0 == pair[1].0)
        || ways.iter().filter(|way| way.0.is_wide()).any(|wide| ways.iter().any(|other| meets(wide, other)))
}

/// The parts that a schema leads to, the whole first.
#[derive(Debug, Default)]
pub struct Graph<'a> {
    parts: Vec<&'a Value>,
    edges: Vec<Vec<(Member<'a>, usize)>>,
    known: HashMap<*const Value, usize>,
}

/// Refuses a schema that inputs cannot be checked against in bounded time. Also how many parts stand in a row.
pub fn check(root: &Value) -> Result<(Graph<'_>, usize), String> {
    let names = Names::of(root)?;
    let graph = Graph::of(root, &names)?;
    let itself = graph.circles(|member| *member == Member::Itself);
    if itself.iter().any(|circle| circle.goes_round) {
        return Err("a part of it refers to itself for the same value, and so has no end".to_owned());
    }
    let circles = graph.circles(|_| true);
    graph.count(&circles)?;
    graph.one_way_round(&itself, &circles)?;
    let row = graph.row(&itself)?;
    Ok((graph, row))
}

/// What a reference may lead to.
struct Names<'a> {
    root: &'a Value,
    id: &'a str,
    anchors: BTreeMap<&'a str, &'a Value>,
}

impl<'a> Names<'a> {
    fn of(root: &'a Value) -> Result<Names<'a>, String> {
        let text = |key| root.get(key).and_then(Value::as_str);
        let old = text("$schema").is_some_and(|draft| draft.contains("draft-04"));
        let key = if old { "id" } else { "$id" };
        let mut names =
            Names { root, id: text(key).unwrap_or_default().trim_end_matches('#'), anchors: BTreeMap::new() };
        let mut left = vec![root];
        let mut patterns: Vec<&str> = Vec::new();
        while let Some(value) = left.pop() {
            match value {
                Value::Array(values) => left.extend(values),
                Value::Object(members) => {
                    left.extend(members.values());
                    patterns.extend(members.get("pattern").and_then(Value::as_str));
                    let named = members.get("patternProperties").and_then(Value::as_object);
                    patterns.extend(named.into_iter().flat_map(|named| named.keys().map(String::as_str)));
                    let id = members.get(key).and_then(Value::as_str).filter(|_| !std::ptr::eq(value, root));
                    let by_id = id.map(|id| id.strip_prefix('#').ok_or(id)).transpose();
                    let by_id =
                        by_id.map_err(|id| format!("a part of it has the `{key}` `{id}`: only the whole may"))?;
                    let anchor = |key| members.get(key).and_then(Value::as_str);
                    for name in [by_id, anchor("$anchor"), anchor("$dynamicAnchor")].into_iter().flatten() {
                        if names.anchors.insert(name, value).is_some_and(|other| !std::ptr::eq(other, value)) {
                            return Err(format!("it has more than one anchor `{name}`"));
                        }
                    }
                }
                _ => {}
            }
        }
        Patterns::check(patterns.into_iter())?;
        Ok(names)
    }

    fn find(&self, reference: &str) -> Result<&'a Value, String> {
        let inside = reference.strip_prefix(self.id).unwrap_or(reference);
        let found = match inside.strip_prefix('#').map(decoded) {
            Some(Some(place)) if place.is_empty() || place.starts_with('/') => self.root.pointer(&place),
            Some(Some(name)) => self.anchors.get(name.as_str()).copied(),
            _ if inside.is_empty() => Some(self.root),
            _ => None,
        };
        found.ok_or_else(|| format!("it refers to `{reference}`, which is not in it, and nothing is fetched"))
    }
}

/// Without `%41`.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// A part, with those that it leads round to.
#[derive(Debug, Clone, Copy, Default)]
struct Circle {
    /// Which group of parts, in such an order that edges lead to later groups.
    group: usize,
    /// Whether it leads to itself.
    goes_round: bool,
}

impl<'a> Graph<'a> {
    fn of(root: &'a Value, names: &Names<'a>) -> Result<Graph<'a>, String> {
        let mut graph = Graph::default();
        graph.part(root)?;
        let mut next = 0;
        while let Some(part) = graph.parts.get(next) {
            let mut edges = Vec::new();
            for (member, part) in leads_to(part, names)? {
                edges.push((member, graph.part(part)?));
            }
            graph.edges.push(edges);
            next += 1;
        }
        Ok(graph)
    }

    /// Each part, and what it leads to.
    pub fn parts(&self) -> impl Iterator<Item = (&'a Value, &[(Member<'a>, usize)])> {
        self.parts.iter().copied().zip(self.edges.iter().map(Vec::as_slice))
    }

    fn part(&mut self, part: &'a Value) -> Result<usize, String> {
        let next = self.parts.len();
        let index = *self.known.entry(std::ptr::from_ref(part)).or_insert(next);
        if index == next {
            self.parts.push(part);
        }
        if self.parts.len() as u64 > MAX_PARTS { Err(too_many()) } else { Ok(index) }
    }

    fn leads(&self, part: usize, wanted: impl Fn(&Member<'a>) -> bool) -> impl Iterator<Item = usize> {
        self.edges[part].iter().filter(move |(member, _)| wanted(member)).map(|(_, to)| *to)
    }

    /// Parts that lead to each other, along the wanted edges: in the order in which they are left, and then backwards.
    fn circles(&self, wanted: impl Fn(&Member<'a>) -> bool) -> Vec<Circle> {
        let count = self.parts.len();
        let (mut forth, mut back) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for (part, forth) in forth.iter_mut().enumerate() {
            forth.extend(self.leads(part, &wanted));
            forth.iter().for_each(|to: &usize| back[*to].push(part));
        }
        let mut left = Vec::new();
        let mut seen = vec![false; count];
        (0..count).for_each(|part| walk(part, &forth, &mut seen, &mut left));
        let mut circles = vec![Circle::default(); count];
        let (mut group, mut seen) = (0, vec![false; count]);
        while let Some(part) = left.pop() {
            let mut members = Vec::new();
            walk(part, &back, &mut seen, &mut members);
            for member in &members {
                let goes_round = members.len() > 1 || forth[*member].contains(member);
                circles[*member] = Circle { group, goes_round };
            }
            group += usize::from(!members.is_empty());
        }
        circles
    }

    /// Parts from the last to the first: what one leads to stands before it, but for its own circle.
    fn backwards(circles: &[Circle]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..circles.len()).collect();
        order.sort_by_key(|part| std::cmp::Reverse(circles[*part].group));
        order
    }

    fn row(&self, itself: &[Circle]) -> Result<usize, String> {
        let mut rows = vec![0; self.parts.len()];
        for part in Self::backwards(itself) {
            let behind = self.leads(part, |member| *member == Member::Itself).map(|to| rows[to]).max();
            rows[part] = behind.unwrap_or(0) + 1;
        }
        let row = rows.into_iter().max().unwrap_or(0);
        match row > MAX_ROW {
            true => Err(format!("{row} parts of it in a row look at the same value, more than {MAX_ROW}")),
            false => Ok(row),
        }
    }

    /// How many parts there are, each as often as it is led to; those of a circle once.
    fn count(&self, circles: &[Circle]) -> Result<(), String> {
        let mut groups = vec![0_u64; self.parts.len()];
        for part in Self::backwards(circles) {
            let group = circles[part].group;
            let others = self.leads(part, |_| true).map(|to| circles[to].group).filter(|to| *to != group);
            let sum = others.fold(1, |sum: u64, to| sum.saturating_add(groups[to]));
            groups[group] = groups[group].saturating_add(sum);
        }
        if groups[circles[0].group] > MAX_PARTS { Err(too_many()) } else { Ok(()) }
    }

    /// Refuses a part of a circle that leads to circles more than once for the same member.
    fn one_way_round(&self, itself: &[Circle], circles: &[Circle]) -> Result<(), String> {
        let mut endless: Vec<bool> = circles.iter().map(|circle| circle.goes_round).collect();
        for part in Self::backwards(circles) {
            endless[part] |= self.leads(part, |_| true).any(|to| endless[to]);
        }
        // Also by parts that look at the same value.
        let mut ways: Vec<Vec<Way<'_>>> = vec![Vec::new(); self.parts.len()];
        let mut sum = 0;
        for part in Self::backwards(itself) {
            let mut own: Vec<Way<'_>> = Vec::new();
            for (member, to) in self.edges[part].iter().filter(|(_, to)| endless[*to]) {
                match member {
                    Member::Itself => own.extend(&ways[*to]),
                    member => own.push((member, part)),
                }
                sum += own.len();
                if sum > MAX_WAYS {
                    return Err("its parts refer to each other in too many ways".to_owned());
                }
            }
            own.sort_unstable();
            if circles[part].goes_round && meet(&own) {
                return Err("a part of it refers back to itself in two ways for the same member of the inputs, \
                     so that every level of them would double the time"
                    .to_owned());
            }
            // Two say as much as many.
            let mut before = [None, None];
            own.retain(|way| {
                let many = before == [Some(*way), Some(*way)];
                before = [before[1], Some(*way)];
                !many
            });
            ways[part] = own;
        }
        Ok(())
    }
}

fn too_many() -> String {
    format!("it has more than {MAX_PARTS} parts, each counted as often as it is referred to")
}

/// Adds what can be reached and is not seen yet, each behind what it leads to.
fn walk(from: usize, edges: &[Vec<usize>], seen: &mut [bool], left: &mut Vec<usize>) {
    if std::mem::replace(&mut seen[from], true) {
        return;
    }
    let mut stack = vec![(from, 0)];
    while let Some((part, next)) = stack.last_mut() {
        match edges[*part].get(*next) {
            Some(to) => {
                *next += 1;
                if !std::mem::replace(&mut seen[*to], true) {
                    stack.push((*to, 0));
                }
            }
            None => left.extend(stack.pop().map(|(part, _)| part)),
        }
    }
}

/// Every keyword that has schemas in it, of all drafts.
fn leads_to<'a>(part: &'a Value, names: &Names<'a>) -> Result<Vec<(Member<'a>, &'a Value)>, String> {
    let Some(members) = part.as_object() else { return Ok(Vec::new()) };
    let mut edges = Vec::new();
    for (keyword, value) in members {
        let single = match keyword.as_str() {
            "not" | "if" | "then" | "else" => Member::Itself,
            "additionalProperties" => Member::OtherProperties,
            "unevaluatedProperties" => Member::UnevaluatedProperties,
            "propertyNames" => Member::Name,
            "contains" => Member::SomeItem,
            "additionalItems" => Member::OtherItems,
            "unevaluatedItems" => Member::UnevaluatedItems,
            "items" if !value.is_array() => Member::OtherItems,
            "$ref" | "$dynamicRef" | "$recursiveRef" => {
                if let Some(reference) = value.as_str() {
                    edges.push((Member::Itself, names.find(reference)?));
                }
                continue;
            }
            _ => {
                let list = value.as_array().into_iter().flatten();
                let map = value.as_object().into_iter().flatten();
                match keyword.as_str() {
                    "allOf" | "anyOf" | "oneOf" => edges.extend(list.map(|part| (Member::Itself, part))),
                    "items" | "prefixItems" => {
                        edges.extend(list.enumerate().map(|(index, part)| (Member::Item(index), part)));
                    }
                    "properties" => edges.extend(map.map(|(name, part)| (Member::Property(name), part))),
                    "patternProperties" => edges.extend(map.map(|(_, part)| (Member::Matching, part))),
                    "dependentSchemas" | "dependencies" => {
                        edges.extend(map.filter(|(_, part)| !part.is_array()).map(|(_, part)| (Member::Itself, part)));
                    }
                    _ => {}
                }
                continue;
            }
        };
        edges.push((single, value));
    }
    Ok(edges)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chain(length: usize, next: impl Fn(Value) -> Value) -> Value {
        let name = |n: usize| format!("a{n}");
        let reference = |n| json!({ "$ref": format!("#/$defs/{}", name(n)) });
        let mut parts: serde_json::Map<_, _> = (0..length).map(|n| (name(n), next(reference(n + 1)))).collect();
        parts.insert(name(length), json!({ "type": "string" }));
        json!({ "$defs": parts, "$ref": "#/$defs/a0" })
    }

    #[test]
    fn ordinary_schemas_pass() {
        for schema in [
            json!(true),
            json!({}),
            // A tree, a list, both, and any JSON within them.
            json!({ "properties": { "left": { "$ref": "#" }, "right": { "$ref": "#" }, "all": { "items": { "$ref": "#" } } } }),
            json!({ "items": { "$ref": "#" }, "additionalProperties": { "$ref": "#" } }),
            json!({ "prefixItems": [{ "$ref": "#" }, { "$ref": "#" }], "items": { "$ref": "#" } }),
            json!({ "properties": { "a": { "$ref": "#" } }, "additionalProperties": { "$ref": "#" } }),
            json!({ "anyOf": [{ "type": "null" }, { "properties": { "and": { "$ref": "#" } } }, { "properties": { "or": { "$ref": "#" } } }] }),
            json!({ "$defs": { "node": { "properties": { "data": { "$ref": "#/$defs/any" }, "children": { "items": { "$ref": "#/$defs/node" } } } },
                "any": { "items": { "$ref": "#/$defs/any" } } }, "allOf": [{ "$ref": "#/$defs/node" }] }),
            json!({ "$defs": { "a b": { "$anchor": "there" } }, "allOf": [{ "$ref": "#there" }, { "$ref": "#/$defs/a%20b" }] }),
            json!({ "$id": "https://example.com/s.json", "properties": { "a": { "$ref": "https://example.com/s.json#" } } }),
            json!({ "$dynamicAnchor": "node", "properties": { "children": { "items": { "$dynamicRef": "#node" } } } }),
            json!({ "$schema": "http://json-schema.org/draft-04/schema#", "definitions": { "a": { "id": "#x" } }, "items": { "$ref": "#x" } }),
            // The same part in many places.
            json!({ "$defs": { "date": { "type": "string" } },
                "properties": (0..500).map(|n| (n.to_string(), json!({ "$ref": "#/$defs/date" }))).collect::<serde_json::Map<_, _>>() }),
            chain(10, |next| json!({ "allOf": [next] })),
        ] {
            assert!(check(&schema).is_ok(), "{:?}: {schema}", check(&schema));
            assert!(super::super::Schema::parse(&schema.to_string(), "s").is_ok(), "{schema}");
        }
    }

    #[test]
    fn bombs_are_refused() {
        let twice = |next: Value| json!({ "allOf": [next.clone(), next] });
        let wide: Vec<Value> =
            (0..3000).map(|_| json!({ "properties": { "a": { "$ref": "#" } }, "allOf": [{ "$ref": "#" }] })).collect();
        for (schema, reason) in [
            (chain(40, twice), "10000 parts"),
            (
                chain(40, |next| json!({ "properties": { "a": next.clone() }, "patternProperties": { "": next } })),
                "10000 parts",
            ),
            (chain(20, |next| json!({ "dependentSchemas": { "a": next.clone() }, "not": next })), "10000 parts"),
            (json!({ "anyOf": vec![json!({}); 10_000] }), "10000 parts"),
            (chain(200, |next| next), "in a row"),
            (json!({ "$ref": "#" }), "no end"),
            (json!({ "properties": { "a": { "$ref": "#/properties/a" } } }), "no end"),
            (json!({ "anyOf": [{ "not": { "$dynamicRef": "#a" } }], "$dynamicAnchor": "a" }), "no end"),
            // One more way at each level of the inputs.
            (json!({ "properties": { "a": { "allOf": [{ "$ref": "#" }, { "$ref": "#" }] } } }), "two ways"),
            (
                json!({ "properties": { "a": { "$ref": "#" } }, "allOf": [{ "properties": { "a": { "$ref": "#" } } }] }),
                "two ways",
            ),
            (
                json!({ "properties": { "a": { "$ref": "#" } }, "patternProperties": { "^a": { "$ref": "#" } } }),
                "two ways",
            ),
            (
                json!({ "properties": { "a": { "$ref": "#" } }, "anyOf": [{ "additionalProperties": { "$ref": "#" } }] }),
                "two ways",
            ),
            (json!({ "items": { "$ref": "#" }, "contains": { "$ref": "#" } }), "two ways"),
            (json!({ "items": { "$ref": "#" }, "not": { "prefixItems": [{ "$recursiveRef": "#" }] } }), "two ways"),
            // Circles that lead into circles.
            (chain(30, |next| json!({ "items": { "anyOf": [{ "$ref": "#" }] }, "allOf": [next] })), "two ways"),
            (
                json!({ "$defs": (0..30).map(|n| (format!("a{n}"), json!({
                "items": { "$ref": format!("#/$defs/a{n}") }, "allOf": [{ "$ref": format!("#/$defs/a{}", (n + 1).min(29) ) }] })))
                .filter(|(name, _)| name != "a29").chain([("a29".to_owned(), json!({ "items": { "$ref": "#/$defs/a29" } }))])
                .collect::<serde_json::Map<_, _>>(), "$ref": "#/$defs/a0" }),
                "two ways",
            ),
            (
                json!({ "properties": (0..3000).map(|n| (n.to_string(), wide[n].clone())).collect::<serde_json::Map<_, _>>() }),
                "too many ways",
            ),
            // What is not in it.
            (json!({ "$ref": "https://json-schema.org/draft/2020-12/schema" }), "nothing is fetched"),
            (json!({ "$ref": "#/$defs/none" }), "nothing is fetched"),
            (json!({ "$ref": "#%4" }), "nothing is fetched"),
            (json!({ "$defs": { "a": { "$id": "other.json" } } }), "only the whole"),
            (json!({ "$defs": { "a": { "$anchor": "x" }, "b": { "$anchor": "x" } } }), "more than one anchor"),
        ] {
            let started = std::time::Instant::now();
            let said = check(&schema).expect_err(&schema.to_string()[..200.min(schema.to_string().len())]);
            assert!(said.contains(reason), "{said}: {}", &schema.to_string()[..200.min(schema.to_string().len())]);
            assert!(started.elapsed() < std::time::Duration::from_secs(10), "{said}");
        }
    }

    /// The longest row that is allowed, for inputs that are nested as deeply as they can be.
    #[test]
    fn the_stack_is_large_enough() {
        let mut schema = chain(60, |next| next);
        schema["$defs"]["a60"] = json!({ "items": { "$ref": "#/$defs/a0" }, "type": "array" });
        let schema = super::super::Schema::parse(&schema.to_string(), "s").unwrap();
        let lists =
            |inner: &str| serde_json::from_str(&format!("{}{inner}{}", "[".repeat(126), "]".repeat(126))).unwrap();
        assert!(schema.says(&lists("[]")).is_ok());
        assert!(schema.says(&lists("1")).unwrap_err()[0].contains("want array"));
    }
}
