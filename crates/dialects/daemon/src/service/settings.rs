//! Settings of the workspace. They are read once and stay in force until a request changes or reloads them, so that an agent that
//! writes the file does not change its own session.

use ostler_protocol::{
    Failure,
    daemon::{
        settings::{
            Reloaded, ReloadedEnvironment, SETTINGS, SetSetting, SettingKind, SettingSet, SettingValues,
            SettingsStatus, SettingsWarning, WorkspaceSettings,
        },
        workspace::SNAPSHOT_VERSION,
    },
    json::value_of,
};
use ostler_server::{app::App, auth::Principal};
use serde_json::{Value, json};

use super::{
    notes::Note,
    profiles,
    settings_file::{self, FileProblem},
    workspace::{self, LoadedSettings, WorkspaceState},
};
use crate::state::DaemonState;

/// The settings in force. A server without a workspace has the defaults.
pub(crate) async fn effective(app: &App) -> WorkspaceSettings {
    loaded(app).await.values.effective()
}

async fn loaded(app: &App) -> LoadedSettings {
    if workspace::cwd(app).is_err() {
        return LoadedSettings::default();
    }
    let mut settings = WorkspaceState::of(app).settings.lock().await;
    if settings.is_none() {
        *settings = Some(
            load(app)
                .await
                .unwrap_or_else(|problem| LoadedSettings { problems: vec![problem], ..LoadedSettings::default() }),
        );
    }
    settings.clone().unwrap_or_default()
}

async fn load(app: &App) -> Result<LoadedSettings, FileProblem> {
    let (values, unusable) = SettingValues::of(&settings_file::read(app).await?);
    Ok(LoadedSettings { values, problems: unusable.into_iter().map(FileProblem::of_value).collect() })
}

pub(crate) async fn get(app: &App, caller: &Principal) -> Result<SettingsStatus, Failure> {
    workspace::check_read(app, caller)?;
    let config = &DaemonState::of(app).config;
    if !config.settings {
        return Err(workspace::switched_off("/workspace/settings"));
    }
    let usable = profiles::list(app, caller).await?.into_iter().filter(profiles::is_usable);
    let usable: Vec<_> = usable.map(|backend| backend.profile).collect();
    let LoadedSettings { values, problems } = loaded(app).await;
    let is_corrupted = problems.iter().any(FileProblem::is_of_file);
    let warning = SettingsWarning { type_name: "corrupted".to_owned(), recovered: false };
    Ok(SettingsStatus {
        v: SNAPSHOT_VERSION,
        settings: SETTINGS.iter().map(|setting| setting.describe(&values, &config.profile, &usable)).collect(),
        warnings: is_corrupted.then_some(warning).into_iter().collect(),
        errors: problems.iter().map(FileProblem::cell).collect(),
    })
}

/// Stores a setting, and notifies the clients of open sessions if it has changed.
pub(crate) async fn set(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    request: SetSetting,
) -> Result<SettingSet, Failure> {
    workspace::check_configure(app, caller, client.as_deref()).await?;
    if !DaemonState::of(app).config.settings {
        return Err(workspace::switched_off("/workspace/settings"));
    }
    let (setting, value) = request.read()?;
    if setting.kind == SettingKind::Profile && !value.is_null() {
        let is_chosen = |profile: &str| value.as_str() == Some(profile);
        let found = profiles::list(app, caller).await?;
        if !found.iter().any(|backend| is_chosen(&backend.profile) && profiles::is_usable(backend)) {
            return Err(setting.invalid());
        }
    }
    let scope = "workspace".to_owned();
    let stored = SettingSet { key: setting.key.to_owned(), scope, value: value.clone(), requires_restart: false };
    let caller = caller.clone();
    app.to_the_end(move |app| async move {
        // Settings that were never read are read before the file changes.
        loaded(&app).await;
        let mut settings = WorkspaceState::of(&app).settings.lock().await;
        settings_file::write(&app, setting, &value).await?;
        let in_force = settings.get_or_insert_default();
        let before = in_force.values.clone();
        in_force.values.set(setting, value);
        in_force.problems.retain(|problem| *problem != FileProblem::of_value(setting.key));
        let is_changed = in_force.values != before;
        drop(settings);
        if is_changed {
            let data = json!({"key": stored.key, "value": stored.value, "scope": stored.scope});
            workspace::announce(&app, &caller, &Note { frame: "settings_changed", data, client }).await;
        }
        Ok(stored)
    })
    .await
}

/// Reads the file again. If it cannot be used, the previous values stay in force.
pub(crate) async fn reload(app: &App, caller: &Principal, client: Option<String>) -> Result<Reloaded, Failure> {
    workspace::check_configure(app, caller, client.as_deref()).await?;
    if !DaemonState::of(app).config.reload {
        return Err(workspace::switched_off("/workspace/reload"));
    }
    let caller = caller.clone();
    app.to_the_end(move |app| async move {
        loaded(&app).await;
        let mut settings = WorkspaceState::of(&app).settings.lock().await;
        let in_force = settings.get_or_insert_default();
        let before = in_force.values.clone();
        match load(&app).await {
            Ok(loaded) => *in_force = loaded,
            Err(problem) => in_force.problems = vec![problem],
        }
        let reloaded = Reloaded {
            env: ReloadedEnvironment::default(),
            changed_keys: before.changed_keys(&in_force.values),
            child_reloaded: false,
            errors: in_force.problems.iter().map(FileProblem::cell).collect(),
        };
        drop(settings);
        if !reloaded.changed_keys.is_empty() {
            let data: Value = value_of(&reloaded);
            workspace::announce(&app, &caller, &Note { frame: "settings_reloaded", data, client }).await;
        }
        Ok(reloaded)
    })
    .await
}
