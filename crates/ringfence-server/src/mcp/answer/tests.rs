use ringfence::SandboxError;
use ringfence::engines::EngineError;
use ringfence::policy::{Cure, Guarantee};

use super::*;

/// Both roads to an answer keep what an engine said; what is about no engine has nothing of it.
#[test]
fn what_an_engine_said_reaches_the_client_whole() {
    let unmet = || EngineError::Unmet {
        engine: "native",
        guarantee: Guarantee::ProcIsolated,
        reason: "not here".to_owned(),
        cures: vec![Cure::set("nesting", "true")],
    };
    let failed = unmet().failure();
    let roads =
        [Trouble::from(SessionError::Start(failed.clone())), Refusal::from(SandboxError::Engine(unmet())).into()];
    for trouble in roads {
        let result = trouble.into_result();
        assert_eq!((result.is_error, &result.structured_content), (Some(true), &None));
        let meta = serde_json::to_value(result.meta.unwrap()).unwrap();
        assert_eq!(serde_json::from_value::<Failure>(meta[FAILURE].clone()).unwrap(), failed);
    }
    assert!(Trouble::new("no such file").into_result().meta.is_none());
}
