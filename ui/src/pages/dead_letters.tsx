import { Button, Flex, Input, Text } from "@chakra-ui/react";
import { useState } from "react";
import { useSearchParams } from "react-router-dom";
import { Failed, address, ask, useGet, useList, type Action, type Problem, type Row, type Rows as RowsOf } from "../api";
import { Do, Facts, Failure, FilterBar, Loaded, MessageLink, More, Raw, Rows, Section, Tag, Title, To, When, pathOf } from "../parts";
import { texts } from "../texts";

type CauseOf = { cause: number | null; category: string | null; template: string | null; dead_letters: number; places: number; first_seen_at: string | null; last_seen_at: string | null; rows: RowsOf };
type LetterOf = { dead_letter: number; topic: string | null; group: string | null; message_id: string | null; state: string; category: string | null; cause: number | null; classified_by: string | null; decision: string | null; reason: string | null; case: number | null; died_at: string | null; drained_at: string; content_bytes: number };
type WholeOf = LetterOf & { template: string | null; broker: string; queue: string; broker_id: string; queue_offset: number | null; deliveries: number | null; emptied_at: string | null; actions: Action[] };
type ContentOf = { headers: string; text: string | null; base64: string | null; cause: string; error: string };

export const DeadLetters = () => {
  const [search] = useSearchParams();
  const filter = search.get("filter");
  return (
    <>
      <Title>{texts.deadLetters.title}</Title>
      {filter === null ? <Causes /> : null}
      <Section title={texts.deadLetters.messages}>
        <FilterBar list="dead_letters" />
        <Letters filter={filter ?? "state:open"} />
      </Section>
    </>
  );
};

const Causes = () => {
  const got = useList<CauseOf>("/causes");
  return (
    <Section title={texts.deadLetters.causes}>
      <Loaded got={got}>
        {(rows) => (
          <Rows
            label={texts.deadLetters.causes}
            empty={texts.deadLetters.noCauses}
            rows={rows}
            columns={[
              { name: texts.columns.cause, cell: (row) => <To to={pathOf(row.rows.list, { filter: row.rows.filter || "state:open" })}>{row.template ?? texts.deadLetters.unclassified}</To> },
              { name: texts.columns.category, cell: (row) => row.category ?? "" },
              { name: texts.columns.count, number: true, cell: (row) => row.dead_letters.toLocaleString() },
              { name: texts.columns.first, cell: (row) => <When at={row.first_seen_at} /> },
              { name: texts.columns.last, cell: (row) => <When at={row.last_seen_at} /> },
            ]}
          />
        )}
      </Loaded>
      <More next={got.next} more={got.more} />
    </Section>
  );
};

const Letters = ({ filter }: { filter: string }) => {
  const got = useList<LetterOf>(`/dead-letters?filter=${encodeURIComponent(filter)}`);
  return (
    <>
      <Loaded got={got}>
        {(rows) => (
          <Rows
            label={texts.deadLetters.messages}
            empty={texts.deadLetters.empty}
            rows={rows}
            columns={[
              { name: texts.columns.letter, cell: (row) => <To to={pathOf(`/dead-letters/${row.dead_letter}`)}>{row.dead_letter}</To> },
              { name: texts.columns.topic, cell: (row) => row.topic ?? "?" },
              { name: texts.columns.group, cell: (row) => row.group ?? "?" },
              { name: texts.columns.message, cell: (row) => <MessageLink topic={row.topic} id={row.message_id} /> },
              { name: texts.columns.state, cell: (row) => <Tag>{row.state}</Tag> },
              { name: texts.columns.category, cell: (row) => row.category ?? texts.deadLetters.unclassified },
              { name: texts.columns.reason, cell: (row) => row.reason ?? "" },
              { name: texts.columns.case, cell: (row) => (row.case ? <To to={pathOf(`/cases/${row.case}`)}>{row.case}</To> : "") },
              { name: texts.columns.died, cell: (row) => <When at={row.died_at ?? row.drained_at} /> },
            ]}
          />
        )}
      </Loaded>
      <More next={got.next} more={got.more} />
    </>
  );
};

export const DeadLetter = ({ id }: { id: string }) => {
  const got = useGet<WholeOf>(`/dead-letters/${encodeURIComponent(id)}`);
  const [planned, setPlanned] = useState<string | null>(null);
  return (
    <Loaded got={got}>
      {(row) => (
        <>
          <Title>{`${texts.columns.letter} ${row.dead_letter}`}</Title>
          <Facts
            facts={[
              [texts.columns.state, <Tag>{row.state}</Tag>],
              [texts.columns.topic, row.topic],
              [texts.columns.group, row.group],
              [texts.columns.message, <MessageLink topic={row.topic} id={row.message_id} />],
              [texts.columns.cause, row.template ?? texts.deadLetters.unclassified],
              [texts.columns.category, row.category ? `${row.category} (${row.classified_by ?? ""})` : null],
              [texts.columns.decision, row.decision ? `${row.decision}: ${row.reason ?? ""}` : null],
              [texts.columns.case, row.case ? <To to={pathOf(`/cases/${row.case}`)}>{row.case}</To> : null],
              [texts.columns.queue, `${row.broker} ${row.queue} ${row.broker_id}`],
              [texts.columns.died, <When at={row.died_at ?? row.drained_at} />],
            ]}
          />
          <Flex gap={4} wrap="wrap" mb={4}>
            {row.actions.filter((action) => action.name === "plan_replay").map((action) => (
              <Do key={action.name} label={texts.deadLetters.replay} action={action} after={(said) => setPlanned(String((said as Row)["dag_run_id"]))} />
            ))}
          </Flex>
          {planned ? <Text role="status">{texts.deadLetters.planned} <To to={`/dags/replay_incident/runs/${encodeURIComponent(planned)}`}>{planned}</To></Text> : null}
          {row.actions.filter((action) => action.name === "read_contents").map((action) => <Content key={action.name} action={action} />)}
        </>
      )}
    </Loaded>
  );
};

const Content = ({ action }: { action: Action }) => {
  const [content, setContent] = useState<ContentOf | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [why, setWhy] = useState("");
  const read = async () => {
    setProblem(null);
    try {
      setContent(await ask<ContentOf>(address(action.href), "POST", { why }));
    } catch (error) {
      setProblem(error instanceof Failed ? error.problem : { what: String(error), unaffected: "", next_step: "", status: 0 });
    }
  };
  return (
    <Section title={texts.deadLetters.content}>
      <Text fontSize="xs" color="fg.muted" mb={1}>{action.allowed ? texts.deadLetters.readHelp : `${texts.greyed}: ${action.why_not ?? ""}`}</Text>
      {content === null ? (
        <Flex gap={2} wrap="wrap">
          {action.allowed ? <Input size="sm" maxW="20rem" aria-label={texts.why} placeholder={texts.why} value={why} onChange={(event) => setWhy(event.target.value)} /> : null}
          <Button size="sm" disabled={!action.allowed} onClick={() => void read()} data-testid="read-content">{texts.deadLetters.read}</Button>
        </Flex>
      ) : (
        <>
          <Text fontWeight="semibold">{texts.deadLetters.headers}</Text>
          <Raw value={content.headers} />
          <Text fontWeight="semibold">{texts.deadLetters.content}</Text>
          {content.text === null && content.base64 === null ? <Text>{texts.deadLetters.purged}</Text> : null}
          {content.text !== null ? <Raw value={content.text} /> : content.base64 !== null ? <><Text>{texts.deadLetters.binary}</Text><Raw value={content.base64} /></> : null}
          <Text fontWeight="semibold">{texts.columns.error}</Text>
          <Raw value={content.error || content.cause} />
        </>
      )}
      {problem ? <Failure problem={problem} /> : null}
    </Section>
  );
};
