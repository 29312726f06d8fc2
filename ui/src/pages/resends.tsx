import { Flex, Text } from "@chakra-ui/react";
import { useSearchParams } from "react-router-dom";
import { useGet, useList, type Action } from "../api";
import { Do, FilterBar, Loaded, MessageLink, More, Rows, Section, Tag, Title, To, When, filterOf, pathOf } from "../parts";
import { texts } from "../texts";
import { Replays } from "./replays";

type RequestOf = { request: number; topic: string; message_id: string; send: number; groups: string[] | null; reason: string; requested_by: string; state: string; batch: number | null; updated_at: string };
type BatchOf = { batch: number; topic: string; state: string; step: number; step_size: number; released: number; held: number | null; sent_last_minute: number | null; case: number | null; created_at: string };
type PauseOf = { topic: string; paused_at: string; paused_by: string; why: string };
type MeOf = { topics: { topic: string; mode: string; actions: Action[] }[]; actions: Action[] };

export const Resends = () => {
  const [search] = useSearchParams();
  const filter = search.get("filter") ?? "";
  const got = useList<RequestOf>(`/resends?filter=${encodeURIComponent(filter)}`, 15);
  const batches = useList<BatchOf>("/batches", 15);
  const pauses = useGet<PauseOf[]>("/pauses", 15);
  const me = useGet<MeOf>("/me");
  const offered = (topic: string, name: "pause" | "resume"): Action | undefined =>
    (topic === "*" ? me.data?.actions : me.data?.topics.find((one) => one.topic === topic)?.actions)?.find((one) => one.name === name);
  const paused = new Set((pauses.data ?? []).map((one) => one.topic));
  return (
    <>
      <Title>{texts.resends.title}</Title>
      <Section title={texts.resends.pauses}>
        <Loaded got={pauses}>
          {(rows) => (
            <>
              {rows.length === 0 ? <Text mb={2} color="fg.muted" data-testid="no-pause">{texts.overview.noPauses}</Text> : rows.map((row) => {
                const action = offered(row.topic, "resume");
                return (
                  <Flex key={row.topic} gap={3} mb={2} align="center" wrap="wrap" data-testid={`paused-${row.topic}`}>
                    <Text>{`${row.topic === "*" ? texts.all : row.topic}, ${texts.overview.pausedBy} ${row.paused_by}: ${row.why}`}</Text>
                    <When at={row.paused_at} />
                    {action ? <Do label={`${texts.resends.resume} ${row.topic === "*" ? texts.all : row.topic}`} action={action} after={pauses.again} drop /> : null}
                  </Flex>
                );
              })}
              <Flex gap={2} wrap="wrap">
                {["*", ...(me.data?.topics.map((one) => one.topic) ?? [])].filter((topic) => !paused.has(topic)).map((topic) => {
                  const action = offered(topic, "pause");
                  return action ? <Do key={topic} label={topic === "*" ? texts.resends.pauseAll : `${texts.resends.pause} ${topic}`} action={action} after={pauses.again} /> : null;
                })}
              </Flex>
            </>
          )}
        </Loaded>
      </Section>
      <Section title={texts.resends.batches}>
        <Loaded got={batches}>
          {(rows) => (
            <Rows
              label={texts.resends.batches}
              empty={texts.resends.noBatches}
              rows={rows}
              columns={[
                { name: texts.columns.batch, cell: (row) => <To to={pathOf("/resends", { filter: filterOf({ batch: row.batch }) })}>{row.batch}</To> },
                { name: texts.columns.topic, cell: (row) => row.topic },
                { name: texts.columns.state, cell: (row) => <Tag>{row.state}</Tag> },
                { name: texts.columns.step, number: true, cell: (row) => `${row.step} (${row.step_size})` },
                { name: texts.columns.released, number: true, cell: (row) => row.released.toLocaleString() },
                { name: texts.columns.held, number: true, cell: (row) => (row.held === null ? "" : <To to={pathOf("/resends", { filter: filterOf({ topic: row.topic, state: "open", held: "yes" }) })} label={`${texts.columns.held}: ${row.held}`}>{row.held.toLocaleString()}</To>) },
                { name: texts.columns.lastMinute, number: true, cell: (row) => row.sent_last_minute?.toLocaleString() ?? "" },
                { name: texts.columns.case, cell: (row) => (row.case ? <To to={pathOf(`/cases/${row.case}`)}>{row.case}</To> : "") },
                { name: texts.columns.opened, cell: (row) => <When at={row.created_at} /> },
              ]}
            />
          )}
        </Loaded>
        <More next={batches.next} more={batches.more} />
      </Section>
      <Replays />
      <FilterBar list="requests" />
      <Loaded got={got}>
        {(rows) => (
          <Rows
            label={texts.resends.title}
            empty={texts.resends.empty}
            rows={rows}
            columns={[
              { name: texts.columns.request, cell: (row) => row.request },
              { name: texts.columns.topic, cell: (row) => row.topic },
              { name: texts.columns.message, cell: (row) => <MessageLink topic={row.topic} id={row.message_id} /> },
              { name: texts.columns.send, number: true, cell: (row) => row.send },
              { name: texts.columns.group, cell: (row) => row.groups?.join(", ") ?? texts.all },
              { name: texts.columns.state, cell: (row) => <Tag>{row.state}</Tag> },
              { name: texts.columns.reason, wide: true, cell: (row) => row.reason },
              { name: texts.columns.by, cell: (row) => row.requested_by },
              { name: texts.columns.updated, cell: (row) => <When at={row.updated_at} /> },
            ]}
          />
        )}
      </Loaded>
      <More next={got.next} more={got.more} />
    </>
  );
};
