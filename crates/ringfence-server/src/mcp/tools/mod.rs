//! The tools: a module for each group, a row for each tool.

mod code;
mod command;
mod files;
mod info;
mod search;
mod skills;

use std::sync::Arc;

use ringfence::policy::policy::Network;
use rmcp::model::{CallToolResult, JsonObject, Tool, ToolAnnotations};
use rmcp::service::{RequestContext, RoleServer};
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::code::status;
use super::answer::Trouble;
use super::live::{Live, Opened};

/// What a tool works with.
pub struct Desk<'a> {
    pub live: &'a Arc<Live>,
    pub opened: Arc<Opened>,
    pub context: &'a RequestContext<RoleServer>,
}

/// A tool: its arguments as a type, which refuses what it does not know.
trait Act: DeserializeOwned + JsonSchema + Send + 'static {
    type Output: Serialize + JsonSchema + 'static;
    const NAME: &'static str;
    const TITLE: &'static str;
    const ABOUT: &'static str;
    const NATURE: Nature;

    fn act(self, desk: &Desk<'_>) -> impl Future<Output = Result<CallToolResult, Trouble>> + Send;
}

/// What a tool can do to the world, for the client's annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nature {
    /// Changes nothing.
    Reads,
    /// Changes files in the sandbox, and the second time nothing more.
    Writes,
    /// Changes files in the sandbox, each time anew.
    Edits,
    /// Runs whatever it is given; reaches what the sandbox reaches.
    Runs,
    /// Runs what it is, in a box that changes nothing that stays; reaches what that reaches.
    Computes,
}

impl Nature {
    fn annotations(self, title: &str, open_world: bool) -> ToolAnnotations {
        let hints = ToolAnnotations::with_title(title).read_only(self == Nature::Reads);
        match self {
            Nature::Reads => hints.destructive(false).idempotent(true).open_world(false),
            Nature::Writes => hints.destructive(true).idempotent(true).open_world(false),
            Nature::Edits => hints.destructive(true).idempotent(false).open_world(false),
            Nature::Runs => hints.destructive(true).idempotent(false).open_world(open_world),
            Nature::Computes => {
                hints.read_only(!open_world).destructive(false).idempotent(false).open_world(open_world)
            }
        }
    }
}

/// Every tool once: names it where calls are parsed and run, and where the list is made.
macro_rules! tools {
    ($($variant:ident => $act:ty),+ $(,)?) => {
        /// A call whose arguments are understood.
        #[derive(Debug)]
        pub enum Call {
            $($variant($act),)+
            Skill(Box<skills::SkillCall>),
        }

        impl Call {
            /// Reads the arguments of a tool of our own; `None` when there is no such tool.
            fn parse(name: &str, arguments: JsonObject) -> Option<Result<Call, Trouble>> {
                match name {
                    $(<$act as Act>::NAME => Some(arguments_of::<$act>(arguments).map(Call::$variant)),)+
                    _ => None,
                }
            }

            pub async fn run(self, desk: &Desk<'_>) -> Result<CallToolResult, Trouble> {
                match self {
                    $(Call::$variant(act) => act.act(desk).await,)+
                    Call::Skill(call) => call.run(desk).await,
                }
            }
        }

        fn list(open_world: bool) -> Vec<Tool> {
            vec![$(definition::<$act>(open_world)),+]
        }
    };
}

tools! {
    RunCommand => command::RunCommand,
    CommandOutput => command::CommandOutput,
    RunCode => code::RunCode,
    ReadFile => files::ReadFile,
    WriteFile => files::WriteFile,
    EditFile => files::EditFile,
    ListFiles => files::ListFiles,
    SearchFiles => search::SearchFiles,
    SessionInfo => info::SessionInfo,
}

/// A call of a tool, or of a skill; `None` when there is neither of this name.
pub async fn find(live: &Arc<Live>, name: &str, arguments: JsonObject) -> Result<Option<Call>, Trouble> {
    if name.starts_with(skills::PREFIX) {
        return Ok(skills::find(live, name, arguments).await?.map(|call| Call::Skill(Box::new(call))));
    }
    Call::parse(name, arguments).transpose()
}

/// The list for the client: these tools, and one for each skill. Whether commands reach the world is the policy's to say.
pub async fn all(live: &Arc<Live>) -> Vec<Tool> {
    let (network, places) = match live.current().await {
        Some(opened) => (Some(opened.allowed.sandbox.policy().network.clone()), opened.places.clone()),
        None => {
            let places = live.places(&[]);
            (live.allowed(&places).ok().map(|allowed| allowed.sandbox.policy().network.clone()), places)
        }
    };
    let mut all = list(network != Some(Network::None));
    all.extend(skills::tools(live, &places).await);
    all
}

fn definition<A: Act>(open_world: bool) -> Tool {
    Tool::new(A::NAME, A::ABOUT, schema::<A>(true))
        .with_title(A::TITLE)
        .with_raw_output_schema(schema::<A::Output>(false))
        .with_annotations(A::NATURE.annotations(A::TITLE, open_world))
}

/// The schema of a type, without what only Rust knows: clients complain about formats such as `uint64`. An argument that
/// may be absent need not be null as well.
fn schema<T: JsonSchema>(input: bool) -> Arc<JsonObject> {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
    let mut plain = RecursiveTransform(|schema: &mut Schema| {
        schema.remove("format");
        let kind = schema.get("type").and_then(|kind| kind.as_array()).and_then(|kinds| kinds.first()).cloned();
        if let Some(kind) = kind.filter(|_| input) {
            schema.insert("type".to_owned(), kind);
        }
    });
    plain.transform(&mut schema);
    schema.remove("title");
    schema.remove("description");
    if input {
        // Some clients refuse an object that does not say which members it has.
        schema.ensure_object().entry("properties").or_insert_with(|| JsonObject::new().into());
    }
    Arc::new(schema.as_object().cloned().unwrap_or_default())
}

fn arguments_of<A: Act>(arguments: JsonObject) -> Result<A, Trouble> {
    serde_json::from_value(serde_json::Value::Object(arguments))
        .map_err(|error| Trouble::new(format!("Wrong arguments for {}: {error}. Nothing was done.", A::NAME)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_described() {
        let all = list(false);
        assert_eq!(all.len(), 9);
        for tool in &all {
            let (name, input) = (&tool.name, &tool.input_schema);
            assert_eq!(input["additionalProperties"], false, "{name}");
            for (argument, schema) in input["properties"].as_object().unwrap() {
                assert!(schema["description"].is_string(), "{name}.{argument} has no description");
                assert!(schema["type"].is_string() && schema.get("format").is_none(), "{name}.{argument}: {schema}");
            }
            let output = tool.output_schema.as_ref().unwrap();
            assert_eq!(output["type"], "object", "{name}");
            let hints = tool.annotations.as_ref().unwrap();
            let reads = ["read_file", "list_files", "search_files", "session_info"].contains(&name.as_ref());
            assert_eq!((hints.read_only_hint, hints.destructive_hint), (Some(reads), Some(!reads)), "{name}");
            assert_eq!(hints.open_world_hint, Some(false));
        }
        assert_eq!(list(true)[0].annotations.as_ref().unwrap().open_world_hint, Some(true));
    }

    #[test]
    fn arguments_that_are_not_known_are_refused() {
        let parse = |name: &str, value: serde_json::Value| {
            let arguments = value.as_object().unwrap().clone();
            Call::parse(name, arguments).unwrap().map(drop).map_err(|trouble| trouble.to_string())
        };
        let command = serde_json::json!({ "command": "true", "network": true });
        let error = parse("run_command", command).unwrap_err();
        assert!(error.contains("unknown field `network`") && error.contains("Nothing was done"), "{error}");
        assert!(parse("run_command", serde_json::json!({ "command": "true" })).is_ok());
        assert!(parse("read_file", serde_json::json!({})).unwrap_err().contains("missing field `path`"));
        assert!(Call::parse("no_such_tool", JsonObject::new()).is_none());
    }
}
