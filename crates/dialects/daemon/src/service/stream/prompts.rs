//! The commands of followed sessions as prompts: the id that clients know, the client that submitted it, and its number. None of
//! them changes, so they are read once.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use ostler_protocol::{Failure, daemon::translate::PromptRef, ids::CommandId, kernel::commands::CommandType};
use ostler_server::app::App;
use ostler_store as store;
use parking_lot::Mutex;

/// Prompts that a process remembers. The oldest is forgotten first.
const PROMPTS_MAX: usize = 1_024;

#[derive(Default)]
pub(crate) struct Prompts {
    cached: Mutex<CachedPrompts>,
}

#[derive(Default)]
struct CachedPrompts {
    by_command: HashMap<CommandId, Arc<PromptRef>>,
    order: VecDeque<CommandId>,
}

impl Prompts {
    pub(super) async fn get(&self, app: &App, command_id: CommandId) -> Result<Arc<PromptRef>, Failure> {
        if let Some(cached) = self.cached.lock().by_command.get(&command_id) {
            return Ok(cached.clone());
        }
        let command = store::kernel::commands::get(&app.db, command_id).await?;
        let alias = store::kernel::aliases::find_first_by_command(&app.db, command_id).await?;
        let prompt = Arc::new(PromptRef {
            prompt_id: alias.map_or_else(|| command_id.to_string(), |alias| alias.alias),
            client_id: command.as_ref().and_then(|command| command.origin.clone()),
            is_turn: command.as_ref().is_some_and(|command| command.command_type == CommandType::Turn),
            number: command.map_or(0, |command| command.seq),
        });
        self.insert(command_id, prompt.clone());
        Ok(prompt)
    }

    fn insert(&self, command_id: CommandId, prompt: Arc<PromptRef>) {
        let mut cached = self.cached.lock();
        if cached.by_command.insert(command_id, prompt).is_none() {
            cached.order.push_back(command_id);
        }
        if cached.order.len() > PROMPTS_MAX
            && let Some(oldest) = cached.order.pop_front()
        {
            cached.by_command.remove(&oldest);
        }
    }
}
