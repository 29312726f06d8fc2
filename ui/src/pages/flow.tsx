import { Box } from "@chakra-ui/react";
import { useSearchParams } from "react-router-dom";
import { useGet, useList } from "../api";
import { FilterBar, Loaded, MessageLink, More, Rows, Said, Section, Title, To, When, duration, pathOf } from "../parts";
import { texts } from "../texts";

export type FlowOf = { topic: string; group: string; taken_at: string; waiting: number; expired: number; backlog_seconds: number; rate: number | null; empty_in_seconds: number | null; lost_in_seconds: number | null };
export type QueueOf = { topic: string; group: string; queue: number; passed: number; stored: number; stands_since: string; owner: string | null; owner_state: string | null };
type ParkedOf = { case: number; topic: string; group: string; key: string; messages: number | null; head: string | null; error: string | null; parked_at: string | null };
type BlockedOf = { case: number; topic: string; group: string; summary: string; opened_at: string };

export const Flow = () => {
  const got = useGet<{ groups: FlowOf[] }>("/flow", 30);
  const [search] = useSearchParams();
  const queues = useList<QueueOf>(`/queues?filter=${encodeURIComponent(search.get("filter") ?? "")}`);
  const blocked = useList<BlockedOf>(`/cases?filter=${encodeURIComponent("kind:queue_blocked state:open")}`);
  const parked = useList<ParkedOf>("/parked-keys");
  return (
    <>
      <Title>{texts.flow.title}</Title>
      <Box mb={6}>
      <Loaded got={got}>
        {(data) => (
          <Rows
            label={texts.flow.title}
            empty={texts.flow.empty}
            rows={data.groups}
            columns={[
              { name: texts.columns.topic, cell: (row) => row.topic },
              { name: texts.columns.group, cell: (row) => <To to={pathOf("/pairs", { topic: row.topic, group: row.group })}>{row.group}</To> },
              { name: texts.columns.waiting, number: true, cell: (row) => row.waiting.toLocaleString() },
              { name: texts.columns.age, cell: (row) => duration(row.backlog_seconds) },
              { name: texts.columns.rate, number: true, cell: (row) => (row.rate === null ? "–" : row.rate.toFixed(1)) },
              { name: texts.columns.emptyIn, cell: (row) => duration(row.empty_in_seconds) },
              { name: texts.columns.lostIn, cell: (row) => duration(row.lost_in_seconds) },
              { name: texts.columns.at, cell: (row) => <When at={row.taken_at} /> },
            ]}
          />
        )}
      </Loaded>
      </Box>
      <Section title={texts.flow.queues}>
        <FilterBar list="queues" />
        <Loaded got={queues}>
          {(rows) => (
            <Rows
              label={texts.flow.queues}
              empty={texts.flow.empty}
              rows={rows}
              columns={[
                { name: texts.columns.topic, cell: (row) => row.topic },
                { name: texts.columns.group, cell: (row) => row.group },
                { name: texts.columns.queue, number: true, cell: (row) => row.queue },
                { name: texts.columns.passed, number: true, cell: (row) => row.passed.toLocaleString() },
                { name: texts.columns.stands, cell: (row) => <When at={row.stands_since} /> },
                { name: texts.columns.owner, cell: (row) => (row.owner === null ? "–" : `${row.owner} (${row.owner_state})`) },
              ]}
            />
          )}
        </Loaded>
        <More next={queues.next} more={queues.more} />
      </Section>
      <Section title={texts.flow.blocked}>
        <Loaded got={blocked}>
          {(rows) => (
            <Rows
              label={texts.flow.blocked}
              empty={texts.flow.noneBlocked}
              rows={rows}
              columns={[
                { name: texts.columns.case, cell: (row) => <To to={pathOf(`/cases/${row.case}`)}>{row.case}</To> },
                { name: texts.columns.topic, cell: (row) => row.topic },
                { name: texts.columns.group, cell: (row) => row.group },
                { name: texts.columns.summary, wide: true, cell: (row) => <Said>{row.summary}</Said> },
                { name: texts.columns.since, cell: (row) => <When at={row.opened_at} /> },
              ]}
            />
          )}
        </Loaded>
        <More next={blocked.next} more={blocked.more} />
      </Section>
      <Section title={texts.flow.parked}>
        <Loaded got={parked}>
          {(rows) => (
            <Rows
              label={texts.flow.parked}
              empty={texts.flow.noneParked}
              rows={rows}
              columns={[
                { name: texts.columns.case, cell: (row) => <To to={pathOf(`/cases/${row.case}`)}>{row.case}</To> },
                { name: texts.columns.topic, cell: (row) => row.topic },
                { name: texts.columns.group, cell: (row) => row.group },
                { name: texts.columns.key, cell: (row) => row.key },
                { name: texts.columns.count, number: true, cell: (row) => row.messages?.toLocaleString() },
                { name: texts.columns.head, cell: (row) => row.head && <MessageLink topic={row.topic} id={row.head} /> },
                { name: texts.columns.error, wide: true, cell: (row) => row.error },
                { name: texts.columns.parked, cell: (row) => row.parked_at && <When at={row.parked_at} /> },
              ]}
            />
          )}
        </Loaded>
        <More next={parked.next} more={parked.more} />
      </Section>
    </>
  );
};
