//! The namespace of a client, given to every call that names none itself.

use std::any::Any;

use ff_core::op;

/// Fills in the namespace.
pub(crate) fn fill_in(args: &mut dyn Any, namespace: &str) {
    macro_rules! operations_with_a_namespace {
        ($($module:ident)*) => {
            $(
                if let Some(args) = args.downcast_mut::<op::$module::Args>() {
                    args.namespace.get_or_insert_with(|| namespace.to_owned());
                    return;
                }
            )*
        };
    }
    operations_with_a_namespace! {
        claim claim_from_grant configure_lane create_budget create_execution create_flow create_quota
        deregister_worker disable_lane drain_lane exchange get_budget get_counts get_quota heartbeat_worker list_approvals list_audit list_budgets
        list_events list_executions list_flows list_lanes list_quotas list_workers pause_lane register_worker
        report_budget_usage reset_budget resume_lane return_grant set_budget_limits
    }
    if let Some(args) = args.downcast_mut::<op::create_executions::Args>() {
        for execution in &mut args.executions {
            execution.namespace.get_or_insert_with(|| namespace.to_owned());
        }
    }
}
