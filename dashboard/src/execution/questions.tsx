// Questions about a journal: whether a step that is in doubt happened, and what becomes of an entry that the program no
// longer fits. An operator answers them.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { option, parseJson, quote, words } from "../format";
import { may } from "../session";
import { When } from "../ui/basics";
import { Payload } from "../ui/payload";
import { propose } from "../ui/dialog";
import type { Values } from "../ui/dialog";
import type { View } from "../screens/execution";

type Question = Schemas["QuestionView"];
type StepAnswer = Schemas["StepAnswer"];

const EFFECTS: Record<StepAnswer, string> = {
  happened: "The step counts as done, with the result that you give. It does not run again.",
  did_not_happen: "The step counts as not begun, and runs.",
  keep: "The entry stays as it was recorded, and the program goes on with it.",
  run_again: "The entry and those after it are dropped, and the program runs them anew.",
  go_on: "The execution goes on, and equal results are counted anew.",
  fail: "The step fails, and the program decides what follows from that. An execution that was taken for a loop fails itself.",
};

function nameOf(step: Question["step"]): string {
  return [step.name, step.key, step.occurrence ? `(call ${step.occurrence + 1})` : ""].filter(Boolean).join(" ");
}

function command(id: string, step: Question["step"], chosen: StepAnswer, values: Values): string {
  const result = chosen === "happened" ? ` ${quote(JSON.stringify(parseJson(values["result"] ?? "null", "The result")))}` : "";
  const key = step.key ? ` --key ${quote(step.key)}` : step.occurrence ? ` --occurrence ${step.occurrence}` : "";
  return `ff decide ${id} ${chosen}${result} --step ${quote(step.name)}${key}${option("reason", values["reason"])}`;
}

export function JournalQuestions({ execution, done }: { execution: View; done: () => void }) {
  const id = execution.execution_id;
  const choose = (question: Question, chosen: StepAnswer) =>
    propose({
      name: words(chosen).replace(/^./, (letter) => letter.toUpperCase()),
      effect: EFFECTS[chosen],
      command: (values) => command(id, question.step, chosen, values),
      danger: chosen === "fail",
      fields: [
        ...(chosen === "happened" ? [{ name: "result", label: "Its result, as JSON", type: "textarea" as const, value: "null" }] : []),
        { name: "reason", label: "Reason, for those who read the journal", optional: true },
      ],
      run: async (values) => {
        const body = {
          step: question.step,
          answer: chosen,
          ...(chosen === "happened" ? { result: parseJson(values["result"] ?? "null", "The result") } : {}),
          ...(values["reason"] ? { reason: values["reason"] } : {}),
        };
        await answer(api.POST("/v1/executions/{execution_id}/steps/decide", { params: { path: { execution_id: id } }, body: body as never }));
        done();
        return `${words(chosen)}: recorded in the journal.`;
      },
    });
  return (
    <>
      {(execution.questions ?? []).map((question) => (
        <section class="notice s-suspended stack" aria-label={`A question about the step ${nameOf(question.step)}`}>
          <strong>{question.detail || `Step ${nameOf(question.step)}: ${words(question.reason)}`}</strong>
          {(question.evidence ?? []).map((report) => (
            <div class="small stack">
              <span>
                A worker that had lost its lease said: {words(report.state)} <When at={report.reported_at} />
                {report.message ? `, ${report.message}` : ""}
              </span>
              {report.result?.payload_base64 !== undefined && <Payload base64={report.result.payload_base64} contentType={report.result.content_type} />}
            </div>
          ))}
          {may("operator") ? (
            <div class="row">
              {question.answers.map((chosen, index) => (
                <button type="button" class={`button ${index === 0 ? "primary" : ""} ${chosen === "fail" ? "danger" : ""}`} onClick={() => choose(question, chosen)}>
                  {words(chosen).replace(/^./, (letter) => letter.toUpperCase())}
                </button>
              ))}
            </div>
          ) : (
            <p class="small muted">An operator answers this.</p>
          )}
        </section>
      ))}
    </>
  );
}
