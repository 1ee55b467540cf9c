//! The operations as the engine offers them to other crates.
//!
//! A generic or `async` function is compiled again in every crate that awaits it, with all of the engine beneath it.
//! The futures made here are boxed, and so compiled in this crate: a program that calls eighty operations adds little
//! code of its own.

use ff_core::Result;
use ff_core::op::{self, Operation};

use super::Engine;
use crate::caller::Caller;
use crate::env::BoxFuture;

/// An engine that carries out an operation.
pub trait Serves<O: Operation> {
    /// Carries out the operation on behalf of a caller, as [`Engine::call`] does.
    fn serve<'a>(&'a self, caller: &'a Caller, args: O::Args) -> BoxFuture<'a, Result<O::Outcome>>;
}

macro_rules! serves {
    ($($module:ident $name:ident;)*) => {
        $(
            impl Serves<op::$name> for Engine {
                fn serve<'a>(
                    &'a self,
                    caller: &'a Caller,
                    args: op::$module::Args,
                ) -> BoxFuture<'a, Result<<op::$name as Operation>::Outcome>> {
                    self.services.carry_out::<op::$name>(caller, args)
                }
            }
        )*
    };
}

ff_core::operations!(serves);
