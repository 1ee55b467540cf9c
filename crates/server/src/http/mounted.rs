//! The operations that are mounted.

/// Hands the operations that have a handler to a macro, like [`ff_core::operations!`] does with all of them.
macro_rules! mounted {
    ($callback:ident) => {
        $callback! {
            create_execution CreateExecution;
            create_executions CreateExecutions;
            get_execution GetExecution;
            get_state GetState;
            get_result GetResult;
            list_executions ListExecutions;
            wait_execution WaitExecution;
            list_attempts ListAttempts;
            list_execution_events ListExecutionEvents;
            list_upstreams ListUpstreams;
            change_priority ChangePriority;
            set_tags SetTags;
            hold_execution HoldExecution;
            release_execution ReleaseExecution;
            cancel_execution CancelExecution;
            replay_execution ReplayExecution;
            revoke_lease RevokeLease;
            resume_execution ResumeExecution;
            complete Complete;
            fail Fail;
            delay Delay;
            wait_children WaitChildren;
            progress Progress;
            append_frames AppendFrames;
            renew_leases RenewLeases;
            suspend Suspend;
            create_pending_waitpoint CreatePendingWaitpoint;
            deliver_signal DeliverSignal;
            list_pending_waitpoints ListPendingWaitpoints;
            get_waitpoint_token GetWaitpointToken;
            close_waitpoint CloseWaitpoint;
            list_resume_signals ListResumeSignals;
            read_stream ReadStream;
            tail_stream TailStream;
            read_summary ReadSummary;
            register_worker RegisterWorker;
            heartbeat_worker HeartbeatWorker;
            deregister_worker DeregisterWorker;
            list_workers ListWorkers;
            claim Claim;
            claim_from_grant ClaimFromGrant;
            claim_from_reclaim_grant ClaimFromReclaimGrant;
            return_grant ReturnGrant;
            create_flow CreateFlow;
            get_flow GetFlow;
            list_flows ListFlows;
            get_flow_graph GetFlowGraph;
            add_execution_to_flow AddExecutionToFlow;
            stage_dependency_edge StageDependencyEdge;
            apply_dependency_to_child ApplyDependencyToChild;
            cancel_flow CancelFlow;
            list_events ListEvents;
            rotate_waitpoint_secret RotateWaitpointSecret;
            list_audit ListAudit;
            create_token CreateToken;
            list_tokens ListTokens;
            revoke_token RevokeToken;
        }
    };
}
pub(crate) use mounted;
