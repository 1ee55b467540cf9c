// The question of a budget that has no room left: people may grant more for this window, raise the limit, or say no. One
// answer counts for everything that waits for it.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { count, quote } from "../format";
import { link } from "../router";
import { approverOnly, may } from "../session";
import { When } from "../ui/basics";
import { ActButtons } from "../ui/dialog";
import type { Act } from "../ui/dialog";

type Question = Schemas["BudgetQuestionView"];

async function decide(question: Question, chosen: Schemas["BudgetAnswer"], amounts: Record<string, number>): Promise<void> {
  const body = { namespace: question.namespace, answer: chosen, amounts };
  await answer(api.POST("/v1/budgets/{name}/decide", { params: { path: { name: question.budget } }, body: body as never }));
}

function actsOf(question: Question): Act[] {
  const { budget, dimension } = question;
  const wanted = Math.max(1, question.requested - question.left);
  return [
    {
      name: "Grant",
      answer: "approve",
      effect: "So much more may be used until the budget begins anew. Everything that waits for the answer goes on.",
      command: (values) => `ff budget grant ${quote(budget)} ${quote(`${dimension}=${Number(values["amount"])}`)}`,
      fields: [{ name: "amount", label: `How many ${dimension} more`, type: "number", value: String(wanted) }],
      run: async (values) => {
        await decide(question, "grant", { [dimension]: Number(values["amount"]) });
        return "Granted.";
      },
    },
    {
      name: "Raise the limit",
      effect: "The hard limit changes for good. Everything that waits for the answer goes on.",
      command: (values) => `ff budget limits ${quote(budget)} --hard ${quote(`${dimension}=${Number(values["amount"])}`)}`,
      fields: [{ name: "amount", label: `The hard limit of ${dimension}`, type: "number", value: String(question.limit + wanted) }],
      run: async (values) => {
        await decide(question, "raise", { [dimension]: Number(values["amount"]) });
        return "The limit is raised.";
      },
    },
    {
      name: "No",
      answer: "reject",
      effect: "Nothing more is used until the budget begins anew, and nobody is asked again. What waits for the answer fails.",
      command: `ff budget decline ${quote(budget)}`,
      danger: true,
      run: async () => {
        await decide(question, "no", {});
        return "Declined.";
      },
    },
  ];
}

export function BudgetQuestion({ question, done }: { question: Question; done: () => void }) {
  return (
    <article class="card ask" tabIndex={0} aria-label={`${question.budget} has no room left`}>
      <div class="body stack">
        <div class="row between">
          <span class="question">
            May {question.budget} use more {question.dimension}?
          </span>
          <span class="small muted">
            asked <When at={question.since} />
          </span>
        </div>
        <p class="small muted">
          {count(question.left)} of {count(question.limit)} are left{question.requested > 0 ? `, ${count(question.requested)} were asked for` : ""}.{" "}
          {question.execution_id && !approverOnly.value && <a href={link(["executions", question.execution_id])}>The execution that met the limit first</a>}
        </p>
        {may("approver") ? (
          <ActButtons label="Answers" acts={actsOf(question)} done={done} prominent />
        ) : (
          <p class="small muted">This token may look, and not decide. A token with the role approver may.</p>
        )}
      </div>
    </article>
  );
}
