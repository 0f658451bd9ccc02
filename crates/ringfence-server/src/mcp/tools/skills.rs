//! Skills as tools: each one that is enabled has a tool of its own, with the inputs that it declares.
//!
//! Names and schemas were written by whoever wrote the skill. Names are made safe and unique here, and always mean the same
//! skill whatever else is registered; a schema that a client might refuse becomes the schema of one argument.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringfence::policy::layers::content_hash;
use ringfence::skills::Skill;
use rmcp::model::{CallToolResult, JsonObject, Tool};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::code::{CodeAnswer, answer, boxed};
use super::{Desk, Nature, schema};
use crate::mcp::answer::{Trouble, done};
use crate::mcp::client_roots::Places;
use crate::mcp::live::Live;
use crate::mcp::owner::{Reach, Refusal};

/// Every tool of a skill begins with it, and no other does.
pub const PREFIX: &str = "skill_";
/// The longest name: clients put `mcp__ringfence__` before it, and models take 64 characters.
const LONGEST_NAME: usize = 48;
/// Digits of the hash in a name that had to be changed.
const HASH: usize = 16;
/// A longer schema is left out: inputs are checked against it all the same.
const LONGEST_SCHEMA: usize = 16 << 10;
/// The argument that takes inputs which are not plain arguments.
const INPUTS: &str = "inputs";

/// A skill and the tool that it is.
#[derive(Debug)]
pub struct Offer {
    pub name: String,
    pub skill: Skill,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SkillAnswer<'a> {
    skill: &'a str,
    version: &'a str,
    /// Of the code that ran.
    hash: &'a str,
    #[serde(flatten)]
    answer: &'a CodeAnswer,
}

/// A call of a skill.
#[derive(Debug)]
pub struct SkillCall {
    skill: Skill,
    inputs: Value,
}

/// Every skill with its tool's name, those that are disabled too. Reads the registry.
pub async fn offers(live: &Arc<Live>) -> Result<Vec<Offer>, Refusal> {
    let owner = live.clone();
    let read = tokio::task::spawn_blocking(move || owner.owner().skills()).await;
    // A task that panicked has read nothing.
    let skills = read.unwrap_or_else(|_| Ok(Vec::new()))?;
    let names = names(skills.iter().map(|skill| skill.name.as_str()));
    let names: Vec<Option<String>> = skills.iter().map(|skill| names.get(skill.name.as_str()).cloned()).collect();
    let offer = |(skill, name): (Skill, Option<String>)| Some(Offer { name: name?, skill });
    Ok(skills.into_iter().zip(names).filter_map(offer).collect())
}

/// The tools of those that are enabled. A registry that cannot be read is the owner's trouble, and told by whoever reads it.
pub async fn tools(live: &Arc<Live>, places: &Places) -> Vec<Tool> {
    let offers = offers(live).await.unwrap_or_default();
    let enabled: Vec<&Offer> = offers.iter().filter(|offer| !offer.skill.disabled).collect();
    if enabled.is_empty() {
        return Vec::new();
    }
    let reach = live.owner().skills_reach(places);
    // What is not known may be anything.
    let reach = reach.unwrap_or(Reach { writes: true, network: true });
    enabled.into_iter().map(|offer| tool(offer, reach)).collect()
}

fn tool(Offer { name, skill }: &Offer, reach: Reach) -> Tool {
    let source = skill.source.name();
    let about = format!(
        "The skill {} {}: {} code from the source \"{source}\", registered by the owner. It runs in a box of its own \
         and sees nothing but these inputs; its value comes back.",
        skill.name, skill.version, skill.language
    );
    let title = format!("Skill {}", skill.name);
    let nature = if reach.writes { Nature::Runs } else { Nature::Computes };
    Tool::new(name.clone(), about, Arc::new(arguments(skill)))
        .with_title(title.clone())
        .with_raw_output_schema(schema::<SkillAnswer<'_>>(false))
        // What it requires is installed by its first call.
        .with_annotations(nature.annotations(&title, reach.network || skill.requirements.is_some()))
}

/// A call of the tool of this name; `None` when there is none.
pub async fn find(live: &Arc<Live>, name: &str, arguments: JsonObject) -> Result<Option<SkillCall>, Trouble> {
    let offers = offers(live).await?;
    let Some(Offer { skill, .. }) = offers.into_iter().find(|offer| offer.name == name) else { return Ok(None) };
    if skill.disabled {
        let message = format!("The skill {} is disabled. Nothing was run.", skill.name);
        return Err(Trouble::new(message).advise("Only the owner can enable it: ask them."));
    }
    let inputs = match is_plain(skill.inputs.as_ref().map(|schema| schema.as_value())) {
        true => Value::Object(arguments),
        false => wrapped(arguments)?,
    };
    Ok(Some(SkillCall { skill, inputs }))
}

fn wrapped(mut arguments: JsonObject) -> Result<Value, Trouble> {
    let inputs = arguments.remove(INPUTS);
    match inputs {
        Some(inputs) if arguments.is_empty() => Ok(inputs),
        _ => Err(Trouble::new(format!("Give `{INPUTS}` and nothing else. Nothing was run."))),
    }
}

impl SkillCall {
    pub async fn run(self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
        let SkillCall { skill, inputs } = self;
        let (name, version, hash) = (skill.name.clone(), skill.version.clone(), skill.hash.clone());
        let result = boxed(desk, move |owner, places, cancel| owner.run_skill(&skill, inputs, places, cancel));
        let result = result.await?;
        desk.live.ran(&format!("skill {name} {version} {hash}"), &result);
        answer(result, |answer| {
            done(&SkillAnswer { skill: &name, version: &version, hash: &hash, answer }, answer.says())
        })
    }
}

/// The name of each skill's tool. A name that had to be changed carries part of the hash of the one that it stands for, so
/// that another skill never takes its place.
fn names<'a>(skills: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, String> {
    let named = skills.map(|name| {
        if is_safe(name, LONGEST_NAME - PREFIX.len()) && !ends_in_hash(name) {
            return (name, format!("{PREFIX}{name}"));
        }
        let hash = content_hash(name.as_bytes());
        let kept: String = name.chars().take(LONGEST_NAME - PREFIX.len() - 1 - HASH).collect();
        let safe: String = kept.chars().map(|c| if is_safe_char(c) { c } else { '_' }).collect();
        let hash = hash.trim_start_matches("sha256:").chars().take(HASH);
        (name, format!("{PREFIX}{safe}_{}", hash.collect::<String>()))
    });
    named.collect()
}

/// Whether a name is such as are made here, and so could stand for another one.
fn ends_in_hash(name: &str) -> bool {
    let end = name.rsplit_once('_').map_or("", |(_, end)| end);
    end.len() == HASH && end.chars().all(|c| c.is_ascii_hexdigit())
}

fn is_safe(name: &str, longest: usize) -> bool {
    (1..=longest).contains(&name.len()) && name.chars().all(is_safe_char)
}

fn is_safe_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// Whether inputs that fit the schema are arguments that every client takes: an object, without alternatives at the top, and
/// with names that are safe.
fn is_plain(schema: Option<&Value>) -> bool {
    let Some(schema) = schema else { return true };
    let Some(object) = schema.as_object() else { return schema == &Value::Bool(true) };
    let is_object = object.get("type").is_none_or(|kind| kind == "object");
    let alternatives = ["oneOf", "anyOf", "allOf", "not", "if", "enum", "const", "$ref", "$dynamicRef"];
    let properties = object.get("properties").and_then(Value::as_object);
    is_object
        && !alternatives.iter().any(|word| object.contains_key(*word))
        && properties.is_none_or(|properties| properties.keys().all(|name| is_safe(name, 64)))
}

/// The schema of the tool's arguments.
fn arguments(skill: &Skill) -> JsonObject {
    let declared = skill.inputs.as_ref().map(|schema| schema.as_value());
    let fits = |schema: &Value| schema.to_string().len() <= LONGEST_SCHEMA;
    let mut arguments = JsonObject::new();
    match declared {
        Some(Value::Object(schema)) if is_plain(declared) && declared.is_some_and(fits) => {
            arguments.clone_from(schema);
            arguments.remove("$id");
        }
        Some(schema) if !is_plain(declared) => {
            let mut inputs = if fits(schema) { schema.clone() } else { json!({}) };
            if let Value::Object(inputs) = &mut inputs {
                inputs.remove("$id");
                inputs.remove("$schema");
                // Where references in it look for them.
                for word in ["$defs", "definitions"] {
                    arguments.extend(inputs.remove(word).map(|value| (word.to_owned(), value)));
                }
            }
            if !references_hold(&inputs) {
                inputs = json!({ "description": "Checked against the schema that the skill declares." });
            }
            arguments.insert("properties".to_owned(), json!({ INPUTS: inputs }));
            arguments.insert("required".to_owned(), json!([INPUTS]));
            arguments.insert("additionalProperties".to_owned(), false.into());
        }
        _ => {}
    }
    arguments.insert("type".to_owned(), "object".into());
    // Some clients refuse an object that does not say which members it has.
    arguments.entry("properties").or_insert_with(|| JsonObject::new().into());
    arguments
}

/// Whether references still lead to what they meant when the schema is part of another one.
fn references_hold(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => members.iter().all(|(name, value)| match (name.as_str(), value) {
            ("$ref" | "$dynamicRef", Value::String(to)) => {
                to.starts_with("#/$defs/") || to.starts_with("#/definitions/")
            }
            _ => references_hold(value),
        }),
        Value::Array(items) => items.iter().all(references_hold),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn named(all: &[&str]) -> Vec<String> {
        let names = names(all.iter().copied());
        all.iter().map(|name| names[name].clone()).collect()
    }

    #[test]
    fn names_are_safe_and_mean_one_skill() {
        let long = "x".repeat(64);
        let all = ["report", "Report", "a.b", "a_b", "run_command", &long];
        let made = named(&all);
        assert_eq!(made[..2], ["skill_report", "skill_Report"]);
        assert_eq!((made[3].as_str(), made[4].as_str()), ("skill_a_b", "skill_run_command"));
        assert!(made[2].starts_with("skill_a_b_") && made[2].len() == "skill_a_b_".len() + HASH, "{}", made[2]);
        assert_eq!(made.iter().collect::<BTreeSet<_>>().len(), all.len());
        for name in &made {
            assert!(is_safe(name, LONGEST_NAME), "{name}");
        }
        // The same whatever else there is; and somebody who takes the made name does not take its place.
        assert_eq!(named(&["a.b"])[0], made[2]);
        let taken = made[2].strip_prefix(PREFIX).unwrap();
        let both = named(&["a.b", taken]);
        assert_eq!(both[0], made[2]);
        assert_ne!(both[0], both[1]);
    }

    #[test]
    fn schemas_become_arguments() {
        let skill = |schema: Option<Value>| Skill {
            name: "s".into(),
            version: "1".into(),
            hash: String::new(),
            language: "python".into(),
            source: ringfence::skills::Source::Local,
            sandbox_required: true,
            disabled: false,
            added: 0,
            inputs: schema.map(|s| ringfence::skills::Schema::parse(&s.to_string(), "s").unwrap()),
            requirements: None,
            hosts: Vec::new(),
            scan: None,
            scanned: None,
            code: String::new(),
        };
        let made = |schema: Value| Value::Object(arguments(&skill(Some(schema))));
        assert_eq!(Value::Object(arguments(&skill(None))), json!({ "type": "object", "properties": {} }));
        let plain = json!({ "type": "object", "properties": { "x": { "type": "integer" } }, "required": ["x"] });
        assert_eq!(made(plain.clone()), plain);
        assert_eq!(
            made(json!({ "required": ["x"] })),
            json!({ "required": ["x"], "type": "object", "properties": {} })
        );
        for other in [
            json!({ "type": "array", "items": { "type": "string" } }),
            json!({ "oneOf": [{ "required": ["a"] }, { "required": ["b"] }] }),
            json!({ "properties": { "a b": {} } }),
            json!(false),
        ] {
            let wrapped = made(other.clone());
            assert_eq!(wrapped["properties"][INPUTS], other);
            assert_eq!((&wrapped["required"], &wrapped["type"]), (&json!([INPUTS]), &json!("object")));
        }
        let moved =
            made(json!({ "$defs": { "n": { "type": "integer" } }, "type": "array", "items": { "$ref": "#/$defs/n" } }));
        assert_eq!(moved["$defs"]["n"]["type"], "integer");
        assert_eq!(moved["properties"][INPUTS]["items"]["$ref"], "#/$defs/n");
        let lost = made(json!({ "type": "array", "items": { "$ref": "#" } }));
        assert!(lost["properties"][INPUTS]["items"].is_null(), "{lost}");
        let large = made(json!({ "description": "x".repeat(LONGEST_SCHEMA), "properties": { "x": {} } }));
        assert_eq!(large, json!({ "type": "object", "properties": {} }));
    }
}
