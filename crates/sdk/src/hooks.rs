//! Inbound hooks: what becomes of signed messages from outside.

use ff_core::op::{
    CreateHook, DeleteHook, GetHook, HookName, HookView, ListHooks, create_hook, delete_hook, list_hooks,
};

use crate::client::Client;
use crate::error::Result;

/// Inbound hooks.
impl Client {
    /// Creates an inbound hook. The same definition again is no error.
    pub async fn create_hook(&self, hook: create_hook::Args) -> Result<create_hook::Outcome> {
        self.call::<CreateHook>(hook).await
    }

    /// An inbound hook, without its secret.
    pub async fn get_hook(&self, name: &str) -> Result<HookView> {
        self.call::<GetHook>(named(name)).await
    }

    /// All inbound hooks by name.
    pub async fn list_hooks(&self) -> Result<Vec<HookView>> {
        let mut hooks = Vec::new();
        let mut page = list_hooks::Args::default();
        loop {
            let answer = self.call::<ListHooks>(page.clone()).await?;
            hooks.extend(answer.items);
            match answer.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => return Ok(hooks),
            }
        }
    }

    /// Removes an inbound hook: messages to it are refused from then on.
    pub async fn delete_hook(&self, name: &str) -> Result<delete_hook::Outcome> {
        self.call::<DeleteHook>(named(name)).await
    }
}

fn named(name: &str) -> HookName {
    HookName { name: name.to_owned(), namespace: None }
}
