//! The routes of the manager dialect.

mod backends;
mod callers;
mod commands;
mod conversation;
mod events;
mod leases;
mod permissions;
mod provider_profiles;
mod retention;
mod runner_jobs;
mod runners;
mod runs;
mod session_storage;
mod sessions;
mod tokens;
mod tools;
mod usage;
mod users;

use ostler_server::{app::App, net::api_router::ApiRouter, routes};

pub(crate) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .routes(routes!(runs::create, runs::list))
        .routes(routes!(runs::get, runs::update))
        .routes(routes!(runs::result))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::patch_status))
        .routes(routes!(events::page, events::append))
        .routes(routes!(commands::create, commands::poll))
        .routes(routes!(commands::get))
        .routes(routes!(commands::result))
        .routes(routes!(conversation::get))
        .routes(routes!(commands::payload))
        .routes(routes!(commands::diff))
        .routes(routes!(commands::cancel))
        .routes(routes!(commands::ack))
        .routes(routes!(commands::patch_status))
        .routes(routes!(runner_jobs::create, runner_jobs::list))
        .routes(routes!(runner_jobs::get))
        .routes(routes!(runner_jobs::log))
        .routes(routes!(runner_jobs::claim))
        .routes(routes!(permissions::list))
        .routes(routes!(permissions::answer))
        .routes(routes!(leases::claim))
        .routes(routes!(leases::patch))
        .routes(routes!(runners::register))
        .routes(routes!(backends::list))
        .routes(routes!(provider_profiles::list))
        .routes(routes!(provider_profiles::list_changes))
        .routes(routes!(provider_profiles::get, provider_profiles::delete))
        .routes(routes!(provider_profiles::put_credential))
        .routes(routes!(provider_profiles::get_config, provider_profiles::put_config))
        .routes(routes!(provider_profiles::validate))
        .routes(routes!(provider_profiles::get_validation))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::get, sessions::update))
        .routes(routes!(sessions::trace))
        .routes(routes!(sessions::output))
        .routes(routes!(sessions::read))
        .routes(routes!(sessions::control))
        .routes(routes!(session_storage::get, session_storage::delete))
        .routes(routes!(session_storage::refresh))
        .routes(routes!(session_storage::sweep))
        .routes(routes!(retention::get))
        .routes(routes!(retention::sweep))
        .routes(routes!(retention::place_hold, retention::list_holds))
        .routes(routes!(retention::release_hold))
        .routes(routes!(callers::get))
        .routes(routes!(tokens::create, tokens::list))
        .routes(routes!(tokens::revoke))
        .routes(routes!(tools::list))
        .routes(routes!(tools::try_out))
        .routes(routes!(tools::of_run))
        .routes(routes!(tools::call))
        .routes(routes!(usage::get))
        .routes(routes!(users::create, users::list))
        .routes(routes!(users::update, users::remove))
        .routes(routes!(users::create_token))
        .routes(routes!(users::key_set))
}
