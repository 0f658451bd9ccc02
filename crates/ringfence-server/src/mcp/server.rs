//! The protocol's side of the server: who asks, for what, and in which revision.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, Implementation, InputRequest, InputRequiredResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, SubscriptionFilter,
};
#[expect(deprecated, reason = "roots are still how clients say where they work")]
use rmcp::model::{ListRootsRequest, ListRootsResult};
use rmcp::service::{NotificationContext, RequestContext, RoleServer, SubscriptionContext};
use tokio::sync::Semaphore;

use super::answer::Trouble;
use super::live::Live;
use super::owner::Owner;
use super::pressure::Load;
use super::{resources, tools};

/// The current revision and the two before it.
const REVISIONS: &[ProtocolVersion] =
    &[ProtocolVersion::V_2025_06_18, ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28];
/// How long a client may take to say where it works.
const ROOTS_PATIENCE: Duration = Duration::from_secs(5);
/// Calls that are answered at a time. Each holds its arguments, which may have many megabytes, until then.
const MOST_CALLS: usize = 64;
/// Our name for the question, in revisions where questions travel with the answer.
const ROOTS: &str = "roots";

const INSTRUCTIONS: &str = "\
Commands, code and files in a sandbox. run_command runs a command there; what it may read, write, reach and spend is \
fixed by the owner, and session_info says it in words. Paths are those inside the sandbox; relative ones start in its \
working directory. A command that exits with a code other than 0 is a result, not an error. What the policy denies stays \
denied: ask the owner rather than trying other ways.";

#[derive(Debug, Clone)]
pub struct Server {
    live: Arc<Live>,
    calls: Arc<Semaphore>,
    load: Arc<Load>,
}

/// What the client said about its directories.
enum Roots {
    Said(Vec<String>),
    /// The client has to be asked first, with this.
    Ask(Box<InputRequiredResult>),
}

impl Server {
    pub fn new(owner: Owner, load: Arc<Load>) -> Server {
        Server { live: Arc::new(Live::new(owner)), calls: Arc::new(Semaphore::new(MOST_CALLS)), load }
    }

    pub fn live(&self) -> Arc<Live> {
        self.live.clone()
    }

    /// Asks the client for its directories, when that is due and possible.
    #[expect(deprecated, reason = "roots are still how clients say where they work")]
    async fn roots(&self, request: &CallToolRequestParams, context: &RequestContext<RoleServer>) -> Roots {
        let able = context.client_capabilities().is_some_and(|able| able.roots.is_some());
        if !able || self.live.current().await.is_some() {
            return Roots::Said(Vec::new());
        }
        let uris = |list: ListRootsResult| list.roots.into_iter().map(|root| root.uri).collect();
        let version = context.protocol_version();
        if version.is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str()) {
            let answered = request.input_responses.as_ref().and_then(|answers| answers.get(ROOTS));
            return match answered {
                Some(answer) => Roots::Said(serde_json::from_value(answer.clone()).map(uris).unwrap_or_default()),
                None => {
                    let question = InputRequest::ListRoots(ListRootsRequest::default());
                    let questions = BTreeMap::from([(ROOTS.to_owned(), question)]);
                    Roots::Ask(Box::new(InputRequiredResult::from_input_requests(questions)))
                }
            };
        }
        // A client that does not answer works where the owner said.
        let answer = tokio::time::timeout(ROOTS_PATIENCE, context.peer.list_roots()).await;
        Roots::Said(answer.ok().and_then(Result::ok).map(uris).unwrap_or_default())
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let able = ServerCapabilities::builder().enable_tools().enable_tool_list_changed().enable_resources().build();
        ServerConfig::new(able)
            .with_server_info(Implementation::new("ringfence", env!("CARGO_PKG_VERSION")).with_title("Ringfence"))
            .with_instructions(INSTRUCTIONS)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(REVISIONS)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let (live, peer) = (self.live.clone(), context.peer);
        // However often it says so.
        if live.watched.swap(true, Ordering::Relaxed) {
            return;
        }
        tokio::spawn(async move {
            let mut told = None;
            while !peer.is_transport_closed() {
                live.tools_changed(&mut told).await;
                // A client that is gone ends everything.
                let _ = peer.notify_tool_list_changed().await;
            }
        });
    }

    fn accepted_subscription_filter(&self, _: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(SubscriptionFilter::builder().tools_list_changed().build())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut told = None;
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                () = self.live.tools_changed(&mut told) => {}
            }
            if context.sink().notify_tool_list_changed().await.is_err() {
                return Ok(());
            }
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let _running = self.load.running();
        let mark = self.live.owner().skills_mark();
        let tools = tools::all(&self.live).await;
        self.live.listed(mark, &tools);
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        mut request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let _running = self.load.running();
        let Ok(_answered) = self.calls.try_acquire() else {
            let trouble = Trouble::new(format!("{MOST_CALLS} calls are running."));
            return Ok(trouble.advise("Wait for the answer of one of them.").into_result().into());
        };
        let arguments = request.arguments.take().unwrap_or_default();
        // Nothing is made for arguments that are wrong.
        let call = match tools::find(&self.live, &request.name, arguments).await {
            Ok(Some(call)) => call,
            Ok(None) => return Err(ErrorData::invalid_params(format!("unknown tool `{}`", request.name), None)),
            Err(trouble) => return Ok(trouble.into_result().into()),
        };
        let roots = match self.roots(&request, &context).await {
            Roots::Said(roots) => roots,
            Roots::Ask(question) => return Ok((*question).into()),
        };
        let answer = match self.live.open(roots).await {
            Ok(opened) => call.run(&tools::Desk { live: &self.live, opened, context: &context }).await,
            Err(trouble) => Err(trouble),
        };
        if context.ct.is_cancelled() {
            return Err(ErrorData::internal_error("cancelled", None));
        }
        Ok(answer.unwrap_or_else(Trouble::into_result).into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(resources::all()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let _running = self.load.running();
        resources::read(&self.live, &request.uri).await.map(Into::into)
    }
}
