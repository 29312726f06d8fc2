import { Button, Flex, Text } from "@chakra-ui/react";
import { useState } from "react";
import { useSearchParams } from "react-router-dom";
import { answer, problemOf, useGet, useList, type Action, type FormOf, type Problem } from "../api";
import { Empty, Facts, Failure, FilterBar, Loaded, MessageLink, More, Out, Raw, Rows, Said, Section, Tag, Title, To, When, filterOf, pathOf } from "../parts";
import { texts } from "../texts";

type ReplayOf = { plan: number; topic: string; planned_by: string; planned_at: string; why: string; wanted: Record<string, unknown>; whole: boolean; too_wide: boolean; approved_by: string | null; approved_at: string | null; dag_run: string | null };
type WholeOf = ReplayOf & {
  parts: { group: string; reason: string; deliveries: number; requested: number; left_out: number }[];
  left_out: Record<string, number>;
  examples: string[];
  sends: Record<string, number>;
  sends_of: number;
  actions: Action[];
  form: FormOf | null;
};

export const Replays = () => {
  const got = useList<ReplayOf>("/replays");
  return (
    <Section title={texts.replays.title}>
      <Loaded got={got}>
        {(rows) => (
          <Rows
            label={texts.replays.title}
            empty={texts.replays.empty}
            rows={rows}
            columns={[
              { name: texts.replays.plan, cell: (row) => <To to={pathOf(`/replays/${row.plan}`)}>{row.plan}</To> },
              { name: texts.columns.topic, cell: (row) => row.topic },
              { name: texts.columns.by, cell: (row) => row.planned_by },
              { name: texts.columns.reason, wide: true, cell: (row) => row.why },
              { name: texts.replays.approved, cell: (row) => row.approved_by ?? "" },
              { name: texts.columns.at, cell: (row) => <When at={row.planned_at} /> },
            ]}
          />
        )}
      </Loaded>
      <More next={got.next} more={got.more} />
    </Section>
  );
};

export const Replay = ({ id }: { id: string }) => {
  const got = useGet<WholeOf>(`/replays/${encodeURIComponent(id)}`, 3);
  if (got.data === null && got.problem?.status === 404 && !/^\d+$/.test(id))
    return (
      <>
        <Title>{texts.replays.title}</Title>
        <Text data-testid="planning">
          {texts.replays.planning} <To to={`/dags/replay_incident/runs/${encodeURIComponent(id)}`}>{texts.replays.run}</To>
        </Text>
      </>
    );
  return (
    <Loaded got={got}>
      {(plan) => {
        const deliveries = plan.parts.reduce((sum, part) => sum + part.deliveries, 0);
        const requested = plan.parts.reduce((sum, part) => sum + part.requested, 0);
        return (
          <>
            <Title>{`${texts.replays.plan} ${plan.plan}: ${plan.topic}`}</Title>
            <Text mb={2} fontSize="lg" data-testid="planned">{texts.replays.deliveries(deliveries)}</Text>
            {plan.whole ? null : <Text mb={2}>{texts.replays.cutShort}</Text>}
            {plan.too_wide ? <Text mb={2}><Tag kind="warning">{texts.replays.warning}</Tag> {texts.replays.tooWide}</Text> : null}
            {plan.whole && deliveries === 0 ? <Text mb={2}>{texts.replays.nothing}</Text> : null}
            <Facts
              facts={[
                [texts.columns.by, plan.planned_by],
                [texts.columns.reason, plan.why],
                [texts.columns.at, <When at={plan.planned_at} />],
                [texts.replays.approved, plan.approved_by ? <>{plan.approved_by} <When at={plan.approved_at} /></> : null],
                [texts.replays.run, plan.dag_run ? <To to={`/dags/replay_incident/runs/${encodeURIComponent(plan.dag_run)}`}>{plan.dag_run}</To> : null],
                [texts.replays.examples, plan.examples.length > 0 ? <Flex gap={2} wrap="wrap">{plan.examples.map((one) => <MessageLink key={one} topic={plan.topic} id={one} />)}</Flex> : null],
              ]}
            />
            {plan.form ? <Approval form={plan.form} action={plan.actions.find((one) => one.name === "approve")} after={got.again} /> : null}
            <Section title={texts.columns.deliveries}>
              <Rows
                label={texts.columns.deliveries}
                empty={texts.replays.nothing}
                rows={plan.parts}
                columns={[
                  { name: texts.columns.group, cell: (row) => row.group },
                  { name: texts.columns.reason, wide: true, cell: (row) => row.reason },
                  { name: texts.columns.deliveries, number: true, cell: (row) => <Of plan={plan.plan} of={row} number={row.deliveries} /> },
                  { name: texts.replays.requested, number: true, cell: (row) => <Of plan={plan.plan} of={row} number={row.requested} state="requested" /> },
                  { name: texts.replays.changed, number: true, cell: (row) => <Of plan={plan.plan} of={row} number={row.left_out} state="left_out" /> },
                ]}
              />
            </Section>
            <Section title={texts.replays.rows}>
              <Planned plan={plan.plan} />
            </Section>
            <Section title={texts.replays.sends}>
              {requested <= plan.sends_of ? null : (
                <Text mb={2} data-testid="sends-cut">
                  {texts.replays.sendsCut(requested)} <To to={pathOf("/resends", { filter: filterOf({ plan: plan.plan }) })}>{texts.replays.allSends}</To>
                </Text>
              )}
              {Object.keys(plan.sends).length === 0 ? <Empty>{texts.none}</Empty> : (
                <Flex gap={3} wrap="wrap" data-testid="sends">
                  {Object.entries(plan.sends).map(([state, number]) => (
                    <To key={state} to={pathOf("/resends", { filter: filterOf({ plan: plan.plan, state }) })}><Tag>{state}</Tag> {number.toLocaleString()}</To>
                  ))}
                </Flex>
              )}
            </Section>
            {Object.keys(plan.left_out).length > 0 ? (
              <Section title={texts.replays.leftOut}>
                {Object.entries(plan.left_out).map(([reason, number]) => <Text key={reason}>{`${number.toLocaleString()}: ${reason}`}</Text>)}
              </Section>
            ) : null}
            <details>
              <summary>{texts.messages.raw}</summary>
              <Raw value={plan.wanted} />
            </details>
          </>
        );
      }}
    </Loaded>
  );
};

// A number of a plan leads to its rows below.
const Of = ({ plan, of, number, state = null }: { plan: number; of: { group: string; reason: string }; number: number; state?: string | null }) => (
  <To to={pathOf(`/replays/${plan}`, { filter: filterOf({ group: of.group, reason: of.reason, state }) })}>{number.toLocaleString()}</To>
);

type PlannedOf = { topic: string; message_id: string; group: string; send: number; reason: string; state: string; asked_at: string | null; left_out: string | null };

const Planned = ({ plan }: { plan: number }) => {
  const [search] = useSearchParams();
  const got = useList<PlannedOf>(`/replays/${plan}/deliveries?filter=${encodeURIComponent(search.get("filter") ?? "")}`);
  return (
    <>
      <FilterBar list="replay_deliveries" />
      <Loaded got={got}>
        {(rows) => (
          <Rows
            label={texts.replays.rows}
            empty={texts.replays.noRows}
            rows={rows}
            columns={[
              { name: texts.columns.message, cell: (row) => <MessageLink topic={row.topic} id={row.message_id} /> },
              { name: texts.columns.group, cell: (row) => row.group },
              { name: texts.columns.send, number: true, cell: (row) => row.send },
              { name: texts.columns.reason, wide: true, cell: (row) => row.reason },
              { name: texts.columns.state, cell: (row) => <Tag>{row.state}</Tag> },
              { name: texts.replays.requested, cell: (row) => (row.left_out === null ? row.asked_at && <When at={row.asked_at} /> : <Said>{row.left_out}</Said>) },
            ]}
          />
        )}
      </Loaded>
      <More next={got.next} more={got.more} />
    </>
  );
};

// Yes or no to the plan that is shown: the answer names its digest, and Airflow keeps who gave it.
const Approval = ({ form, action, after }: { form: FormOf; action: Action | undefined; after: () => void }) => {
  const [problem, setProblem] = useState<Problem | null>(null);
  const [taken, setTaken] = useState(false);
  const give = (option: string) =>
    answer(form, option).then(
      () => {
        setTaken(true);
        after();
      },
      (error: unknown) => setProblem(problemOf(error)),
    );
  return (
    <Section title={texts.replays.approve}>
      <Text mb={2} data-testid="yes">{form.options[0]}</Text>
      <Flex gap={2} wrap="wrap">
        {form.options.map((option, number) => (
          <Button key={option} size="sm" variant={number === 0 ? "solid" : "outline"} disabled={taken || !action?.allowed} onClick={() => void give(option)} data-testid={number === 0 ? "approve" : "reject"}>
            {number === 0 ? texts.replays.approve : texts.replays.reject}
          </Button>
        ))}
      </Flex>
      {action?.allowed ? null : <Text fontSize="xs" color="fg.muted">{`${texts.greyed}: ${action?.why_not ?? ""}`}</Text>}
      {taken ? <Text role="note" data-testid="taken">{texts.replays.taken}</Text> : null}
      {problem ? <Failure problem={problem} /> : null}
      <Text fontSize="sm" mt={1}><Out href={form.page}>{texts.cases.inAirflow}</Out></Text>
    </Section>
  );
};
