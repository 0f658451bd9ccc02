//! The MCP server: a sandbox as tools for an agent.
//!
//! One client, one session: made on first use, ended with the client. No argument of a tool changes the policy, and
//! nothing but the protocol is written to the client.

mod answer;
mod client_roots;
mod jobs;
mod live;
mod owner;
mod pressure;
mod resources;
mod server;
mod tools;
mod words;

pub use owner::Owner;

use std::sync::Arc;

use rmcp::service::ServiceExt;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::io::stdio_pipes;

use pressure::{Bounded, Load};
use server::Server;

/// One message of a client is never longer than this: longer ones are dropped as they come.
const LONGEST_MESSAGE: usize = 16 << 20;

/// Why the server stopped before its client had gone.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the client does not speak MCP: {0}")]
    Handshake(Box<rmcp::service::ServerInitializeError>),
    #[error("the server failed: {0}")]
    Failed(#[from] tokio::task::JoinError),
}

/// Serves the client at standard input and output until it goes, or until `ended` comes; then ends the session.
pub async fn serve(owner: Owner, ended: impl Future<Output = ()>) -> Result<(), ServeError> {
    let load = Arc::new(Load::default());
    let server = Server::new(owner, load.clone());
    let live = server.live();
    let (read, write) = stdio_pipes();
    let transport = AsyncRwTransport::new_server(read, write).with_max_line_length(LONGEST_MESSAGE);
    let transport = Bounded { inner: transport, load };
    let served = async {
        let running = match server.serve(transport).await {
            Ok(running) => running,
            // It went before it said anything.
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(ServeError::Handshake(Box::new(error))),
        };
        running.waiting().await?;
        Ok(())
    };
    let result = tokio::select! {
        result = served => result,
        () = ended => Ok(()),
    };
    live.end().await;
    result
}
