//! The task of one flow: it polls the provider until the flow ends.

use std::time::Duration;

use ostler_protocol::{
    Failure,
    daemon::device_flows::{DeviceToken, PollOutcome},
    kernel::provider_profiles::{ProfileOwner, ProfileScope, PutCredential},
};
use ostler_server::{app::App, auth::Principal, service::provider_profiles};
use secrecy::SecretString;

use super::{DeviceFlowStates, endpoint::Endpoint, notify, now_ms};

/// How often the task looks whether a poll is due, or the flow has ended.
const TICK: Duration = Duration::from_millis(100);

/// What the task of a flow needs.
pub(super) struct FlowTask {
    pub id: String,
    pub provider_id: String,
    pub caller: Principal,
    pub client: Option<String>,
    /// The profile that gets the token, and its owner.
    pub profile: String,
    pub owner: ProfileOwner,
    pub endpoint: Endpoint,
    pub device_code: SecretString,
}

pub(super) async fn run(app: App, task: FlowTask) {
    tokio::select! {
        () = poll_to_end(&app, &task) => {}
        () = app.drained() => {
            let now_ms = now_ms(&app);
            let frame = DeviceFlowStates::of(&app).change(&task.id, |flow| flow.cancel(now_ms)).flatten();
            if let Some(frame) = frame {
                notify(&app, &task.caller, None, frame).await;
            }
        }
    }
}

async fn poll_to_end(app: &App, task: &FlowTask) {
    let states = DeviceFlowStates::of(app);
    loop {
        tokio::time::sleep(TICK).await;
        let now = now_ms(app);
        let looked = states.change(&task.id, |flow| (flow.expire(now), flow.next_poll_at_ms()));
        let Some((expired, next_poll_at_ms)) = looked else { return };
        if let Some(frame) = expired {
            notify(app, &task.caller, task.client.clone(), frame).await;
        }
        match next_poll_at_ms {
            None => return,
            Some(at) if at > now => continue,
            Some(_) => {}
        }
        let outcome = task.endpoint.poll(&task.device_code).await;
        let now = now_ms(app);
        let polled = states.change(&task.id, |flow| (flow.polled(&outcome, now), flow.is_storing()));
        let Some((frame, is_storing)) = polled else { return };
        if let Some(frame) = frame {
            notify(app, &task.caller, task.client.clone(), frame).await;
        }
        if let PollOutcome::Token(token) = outcome
            && is_storing
        {
            return finish(app, task, token).await;
        }
    }
}

/// Stores the token as the profile's credential, and ends the flow. Not cancelled by a shutdown: a token that was issued is stored.
async fn finish(app: &App, task: &FlowTask, token: DeviceToken) {
    let (scope, request) = (
        ProfileScope { tenant_id: task.owner.tenant_id().map(str::to_owned) },
        PutCredential { api_key: Some(token.access_token), ..PutCredential::default() },
    );
    let (caller, profile) = (task.caller.clone(), task.profile.clone());
    let stored: Result<(), Failure> = app
        .to_the_end(move |app| async move {
            provider_profiles::put_credential(&app, &caller, &profile, &scope, request).await.map(drop)
        })
        .await;
    if let Err(failure) = &stored {
        tracing::error!(%failure, profile = task.profile, "the token of a device flow could not be stored");
    }
    let now = now_ms(app);
    let expires_at_ms = token.expires_in_ms.map(|ms| now.saturating_add(ms));
    let states = DeviceFlowStates::of(app);
    if stored.is_ok() {
        let mut expiries = states.expiries.lock();
        match expires_at_ms {
            Some(at) => expiries.insert(task.provider_id.clone(), at),
            None => expiries.remove(&task.provider_id),
        };
    }
    let frame = states.change(&task.id, |flow| flow.stored(stored.is_ok(), expires_at_ms, now)).flatten();
    if let Some(frame) = frame {
        notify(app, &task.caller, task.client.clone(), frame).await;
    }
}
