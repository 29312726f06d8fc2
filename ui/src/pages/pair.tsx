// One topic and group: what is open, how it moves, who must decide.
import { useSearchParams } from "react-router-dom";
import { useGet, useList } from "../api";
import { Empty, Facts, Loaded, Rows, Said, Section, Tag, Title, To, When, duration, filterOf, pathOf } from "../parts";
import { texts } from "../texts";
import type { FlowOf, QueueOf } from "./flow";
import { DeadLettersOf, History, Verdicts, type OverviewOf } from "./overview";

type CaseOf = { case: number; kind: string; severity: string; summary: string; opened_at: string };

export const Pair = () => {
  const [search] = useSearchParams();
  const topic = search.get("topic") ?? "";
  const group = search.get("group") ?? "";
  const of = encodeURIComponent(filterOf({ topic, group }));
  const overview = useGet<OverviewOf>("/overview", 15);
  const flow = useGet<{ groups: FlowOf[] }>("/flow", 30);
  const cases = useList<CaseOf>(`/cases?filter=${of}${encodeURIComponent(" state:open")}`);
  const queues = useList<QueueOf>(`/queues?filter=${of}`);
  return (
    <>
      <Title>{texts.overview.pair(topic, group)}</Title>
      <Loaded got={overview}>
        {(data) => {
          const pair = data.pairs.find((one) => one.topic === topic && one.group === group);
          return pair === undefined ? <Empty>{texts.overview.noPair}</Empty> : (
            <Facts
              facts={[
                [texts.columns.verdict, <Verdicts pair={pair} />],
                [texts.columns.deadLetters, <DeadLettersOf pair={pair} />],
              ]}
            />
          );
        }}
      </Loaded>
      <Loaded got={flow}>
        {(data) => {
          const now = data.groups.find((one) => one.topic === topic && one.group === group);
          return now === undefined ? <Empty>{texts.flow.empty}</Empty> : (
            <Facts
              facts={[
                [texts.columns.waiting, now.waiting.toLocaleString()],
                [texts.columns.age, duration(now.backlog_seconds)],
                [texts.columns.rate, now.rate === null ? null : now.rate.toFixed(1)],
                [texts.columns.emptyIn, duration(now.empty_in_seconds)],
                [texts.columns.lostIn, duration(now.lost_in_seconds)],
                [texts.columns.at, <When at={now.taken_at} />],
              ]}
            />
          );
        }}
      </Loaded>
      <History topic={topic} group={group} />
      <Section title={texts.cases.title}>
        <Loaded got={cases}>
          {(rows) => (
            <Rows
              label={texts.cases.title}
              empty={texts.cases.empty}
              rows={rows}
              columns={[
                { name: texts.columns.case, cell: (row) => <To to={pathOf(`/cases/${row.case}`)}>{row.case}</To> },
                { name: texts.columns.severity, cell: (row) => <Tag>{row.severity}</Tag> },
                { name: texts.columns.kind, cell: (row) => row.kind },
                { name: texts.columns.summary, wide: true, cell: (row) => <Said>{row.summary}</Said> },
                { name: texts.columns.opened, cell: (row) => <When at={row.opened_at} /> },
              ]}
            />
          )}
        </Loaded>
      </Section>
      <Section title={texts.flow.queues}>
        <Loaded got={queues}>
          {(rows) => (
            <Rows
              label={texts.flow.queues}
              empty={texts.flow.empty}
              rows={rows}
              columns={[
                { name: texts.columns.queue, number: true, cell: (row) => row.queue },
                { name: texts.columns.passed, number: true, cell: (row) => row.passed.toLocaleString() },
                { name: texts.columns.stands, cell: (row) => <When at={row.stands_since} /> },
                { name: texts.columns.owner, cell: (row) => (row.owner === null ? "–" : `${row.owner} (${row.owner_state})`) },
              ]}
            />
          )}
        </Loaded>
      </Section>
    </>
  );
};
