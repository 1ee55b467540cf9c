//! The operations that are mounted.

/// Hands the operations that have a handler to a macro, like [`ff_core::operations!`] does with all of them.
macro_rules! mounted {
    ($callback:ident) => {
        $callback! {
            create_execution CreateExecution;
            get_execution GetExecution;
            get_state GetState;
            get_result GetResult;
            wait_execution WaitExecution;
            complete Complete;
            fail Fail;
            delay Delay;
            claim Claim;
        }
    };
}
pub(crate) use mounted;
