//! Sessions that end with the process that made them, however that happens; and those that are for one thing only.

use std::time::Duration;

use super::{Create, Session, SessionError, Sessions};

/// How long a session lives whose owner was killed before it could own it.
const UNOWNED: Duration = Duration::from_secs(60);

impl Sessions {
    /// Makes a session that ends with what is returned, and with this process.
    pub async fn create_owned(&self, create: Create) -> Result<Session, SessionError> {
        let session = self.create(create.idle(Some(UNOWNED)).life(Some(UNOWNED))).await?;
        session.own().await?;
        Ok(session)
    }

    /// Does one thing in a session of its own, of which nothing is left afterwards.
    pub async fn once<T, E: From<SessionError>>(
        &self,
        create: Create,
        act: impl AsyncFnOnce(&Session) -> Result<T, E>,
    ) -> Result<T, E> {
        self.use_up(self.create_owned(create).await?, act).await
    }

    /// Does one last thing in a session, of which nothing is left afterwards.
    pub async fn use_up<T, E: From<SessionError>>(
        &self,
        session: Session,
        act: impl AsyncFnOnce(&Session) -> Result<T, E>,
    ) -> Result<T, E> {
        let done = act(&session).await;
        // Why it failed is worth more than that it is still there.
        let removed = self.remove(session.id()).await;
        let done = done?;
        removed?;
        Ok(done)
    }
}
