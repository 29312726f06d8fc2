import { Box, Button, Flex, Input, Stack, Text, Textarea } from "@chakra-ui/react";
import { useState } from "react";
import { useNavigate, useSearchParams } from "react-router-dom";
import { address, answer, ask, problemOf, useGet, useList, type Action, type Problem, type Row, type Rows as RowsOf } from "../api";
import { Diff } from "../diff";
import { Do, Empty, Facts, Failure, FilterBar, Loaded, MessageLink, More, Out, Raw, Rows, Section, Tag, Title, To, When, pathOf } from "../parts";
import { texts } from "../texts";
import type { CaseOf } from "./cases";

type CauseOf = { cause: number | null; category: string | null; template: string | null; dead_letters: number; day_ago: number | null; rule: string | null; places: number; first_seen_at: string | null; last_seen_at: string | null; rows: RowsOf };
type LetterOf = { dead_letter: number; topic: string | null; group: string | null; message_id: string | null; state: string; category: string | null; cause: number | null; classified_by: string | null; decision: string | null; reason: string | null; case: number | null; died_at: string | null; drained_at: string; content_bytes: number };
type WholeOf = LetterOf & { template: string | null; broker: string; queue: string; broker_id: string; queue_offset: number | null; deliveries: number | null; emptied_at: string | null; actions: Action[] };
type MatchingOf = { dead_letters: number; cases: { case: number; dead_letters: number }[]; actions: Action[] };
type ExportOf = { items: Row[]; more: boolean };
type CheckOf = { findings: { severity: string; where: string; what: string }[]; compared_with: string[] };
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
        <ActOnAll key={filter ?? ""} filter={filter ?? "state:open"} />
        <Letters filter={filter ?? "state:open"} />
      </Section>
    </>
  );
};

const named = (actions: Action[], name: string): Action | undefined => actions.find((one) => one.name === name);
const shown = (number: number): string => (number > 10_000 ? texts.cases.many : number.toLocaleString());

// What can be done with everything that a filter matches; it is counted when somebody wants to know.
const ActOnAll = ({ filter }: { filter: string }) => {
  const [open, setOpen] = useState(false);
  const got = useGet<MatchingOf>(open ? `/dead-letters/matching?filter=${encodeURIComponent(filter)}` : null);
  const navigate = useNavigate();
  const planned = (said: unknown) => void navigate(pathOf(`/replays/${encodeURIComponent(String((said as Row)["dag_run_id"]))}`));
  if (!open)
    return (
      <Button size="sm" variant="outline" mb={3} onClick={() => setOpen(true)} data-testid="act-on-all">
        {texts.deadLetters.all}
      </Button>
    );
  return (
    <Box borderWidth={1} borderRadius="md" p={3} mb={4} data-testid="matching">
      <Loaded got={got}>
        {(data) => {
          const replay = named(data.actions, "plan_replay");
          const few = replay && { ...replay, body: { ...replay.body, conf: { ...(replay.body["conf"] as Row), mode: "canary" } } };
          return (
            <Stack gap={3}>
              <Text>{texts.deadLetters.matching(shown(data.dead_letters))}</Text>
              {replay ? (
                <Box>
                  <Do label={texts.deadLetters.replayAll} action={replay} after={planned} />
                  <Text fontSize="xs" color="fg.muted">{texts.deadLetters.replayAllHelp}</Text>
                </Box>
              ) : null}
              {few?.allowed ? (
                <Box>
                  <Do label={texts.deadLetters.replayFew} action={few} after={planned} />
                  <Text fontSize="xs" color="fg.muted">{texts.deadLetters.replayFewHelp}</Text>
                </Box>
              ) : null}
              {data.cases.length > 0 ? (
                <Text>
                  {texts.deadLetters.byCase}{" "}
                  {data.cases.map((one) => (
                    <Box as="span" key={one.case} me={2}>
                      <To to={pathOf(`/cases/${one.case}`)} label={`${texts.columns.case} ${one.case}: ${one.dead_letters}`}>{`${one.case} (${one.dead_letters.toLocaleString()})`}</To>
                    </Box>
                  ))}
                </Text>
              ) : null}
              <Exports actions={data.actions} />
            </Stack>
          );
        }}
      </Loaded>
    </Box>
  );
};

// A document that the browser stores; what it holds is bounded by the API.
const save = (name: string, content: unknown) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(content, null, 2)], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};

const Exports = ({ actions }: { actions: Action[] }) => {
  const [said, setSaid] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const take = (found: unknown) => {
    const { items, more } = found as ExportOf;
    save("dead-letters.json", items);
    setSaid(texts.deadLetters.exported(items.length, more));
  };
  const rows = named(actions, "export");
  const contents = named(actions, "export_contents");
  return (
    <Flex gap={3} wrap="wrap" align="start">
      {rows ? (
        <Button
          size="sm"
          variant="outline"
          onClick={() => ask(address(rows.href), rows.method, rows.body).then(take, (error: unknown) => setProblem(problemOf(error)))}
          data-testid="export"
        >
          {texts.deadLetters.export}
        </Button>
      ) : null}
      {contents ? <Do label={texts.deadLetters.exportContents} action={contents} after={take} /> : null}
      {said ? <Text role="note" data-testid="exported">{said}</Text> : null}
      {problem ? <Failure problem={problem} /> : null}
    </Flex>
  );
};

// Whether a cause grows: what waits now beside what waited a day ago.
const trend = (row: CauseOf): string => {
  if (row.day_ago === null) return "–";
  if (row.day_ago === 0) return texts.deadLetters.trendNew;
  const more = row.dead_letters - row.day_ago;
  return more > 0 ? `+${more.toLocaleString()}` : more.toLocaleString();
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
              { name: texts.columns.cause, wide: true, cell: (row) => <To to={pathOf(row.rows.list, { filter: row.rows.filter || "state:open" })}>{row.template ?? texts.deadLetters.unclassified}</To> },
              { name: texts.columns.category, cell: (row) => row.category ?? "" },
              { name: texts.columns.rule, cell: (row) => row.rule ?? "" },
              { name: texts.columns.count, number: true, cell: (row) => row.dead_letters.toLocaleString() },
              { name: texts.deadLetters.trend, number: true, cell: (row) => trend(row) },
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
              { name: texts.columns.reason, wide: true, cell: (row) => row.reason ?? "" },
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
  const navigate = useNavigate();
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
              [texts.columns.category, row.category ? `${row.category}${row.classified_by ? ` (${row.classified_by})` : ""}` : null],
              [texts.columns.decision, row.decision ? `${row.decision}: ${row.reason ?? ""}` : null],
              [texts.columns.case, row.case ? <To to={pathOf(`/cases/${row.case}`)}>{row.case}</To> : null],
              [texts.columns.queue, `${row.broker} ${row.queue} ${row.broker_id}`],
              [texts.columns.died, <When at={row.died_at ?? row.drained_at} />],
            ]}
          />
          <Flex gap={4} wrap="wrap" mb={4}>
            {row.actions.filter((action) => action.name === "plan_replay").map((action) => (
              <Do key={action.name} label={texts.deadLetters.replay} action={action} after={(said) => void navigate(pathOf(`/replays/${encodeURIComponent(String((said as Row)["dag_run_id"]))}`))} />
            ))}
          </Flex>
          {row.actions.filter((action) => action.name === "read_contents").map((action) => <Content key={action.name} row={row} action={action} />)}
        </>
      )}
    </Loaded>
  );
};

const Content = ({ row, action }: { row: WholeOf; action: Action }) => {
  const [content, setContent] = useState<ContentOf | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [why, setWhy] = useState("");
  const read = async () => {
    setProblem(null);
    try {
      setContent(await ask<ContentOf>(address(action.href), "POST", { why }));
    } catch (error) {
      setProblem(problemOf(error));
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
          {content.text !== null && row.state === "open" ? <Edit row={row} old={content.text} /> : null}
        </>
      )}
      {problem ? <Failure problem={problem} /> : null}
    </Section>
  );
};

// The new content beside the old one, what speaks against it, and the answer to the case that sends it.
const Edit = ({ row, old }: { row: WholeOf; old: string }) => {
  const [open, setOpen] = useState(false);
  const [text, setText] = useState(old);
  const [why, setWhy] = useState("");
  const [checked, setChecked] = useState<{ of: string; found: CheckOf } | null>(null);
  const [although, setAlthough] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [sent, setSent] = useState(false);
  const got = useGet<CaseOf>(open && row.case !== null ? `/cases/${row.case}` : null);
  const check = named(row.actions, "check_edit");
  const edit = got.data?.actions.find((one) => one.name === "edit");
  const form = got.data?.form ?? null;
  if (check === undefined) return null;
  if (!open)
    return (
      <Button size="sm" mt={3} disabled={!check.allowed} onClick={() => setOpen(true)} data-testid="edit">
        {texts.deadLetters.edit}
      </Button>
    );
  const found = checked?.of === text ? checked.found : null;
  const wrong = found?.findings.some((one) => one.severity === "error") ?? false;
  const doing = async (what: () => Promise<void>) => {
    setProblem(null);
    try {
      await what();
    } catch (error) {
      setProblem(problemOf(error));
    }
  };
  const compare = () =>
    doing(async () => {
      setAlthough(false);
      setChecked({ of: text, found: await ask<CheckOf>(address(check.href), check.method, { content: text }) });
    });
  const send = () =>
    doing(async () => {
      if (form === null || row.message_id === null) return;
      await answer(form, "edit", { why, ids: row.message_id, secret_content: text });
      setSent(true);
    });
  const why_not =
    row.case === null ? texts.deadLetters.noCase
    : got.data === null ? null
    : edit === undefined ? texts.deadLetters.noCase
    : !edit.allowed ? `${texts.greyed}: ${edit.why_not ?? ""}`
    : form === null ? texts.deadLetters.notAsked
    : null;
  return (
    <Stack gap={3} borderWidth={1} borderRadius="md" p={3} mt={3} data-testid="edit-form">
      <Text fontSize="sm">{texts.deadLetters.editHelp}</Text>
      <Box>
        <label htmlFor="backstop-new-content">{texts.deadLetters.newContent}</label>
        <Textarea id="backstop-new-content" rows={10} fontFamily="mono" fontSize="xs" value={text} onChange={(event) => setText(event.target.value)} data-testid="new-content" />
      </Box>
      <Button size="sm" alignSelf="start" onClick={() => void compare()} data-testid="compare">{texts.deadLetters.compare}</Button>
      {found ? (
        <>
          <Diff before={old} after={text} />
          <Box data-testid="findings">
            <Text fontSize="sm">
              {found.compared_with.length > 0 ? `${texts.deadLetters.comparedWith}: ${found.compared_with.join(", ")}.` : texts.deadLetters.comparedWithNothing}
            </Text>
            {found.findings.length === 0 ? <Empty>{texts.deadLetters.noFindings}</Empty> : found.findings.map((one, number) => (
              <Text key={number}><Tag kind={one.severity === "error" ? "failed" : "warning"}>{one.severity}</Tag> {`${one.where} ${one.what}`}</Text>
            ))}
          </Box>
          {why_not !== null ? <Text data-testid="no-edit">{why_not}</Text> : null}
          {row.case !== null ? <Text fontSize="sm">{`${texts.columns.case}: `}<To to={pathOf(`/cases/${row.case}`)}>{row.case}</To></Text> : null}
          {wrong ? (
            <label>
              <input type="checkbox" checked={although} onChange={(event) => setAlthough(event.target.checked)} data-testid="although" /> {texts.deadLetters.although}
            </label>
          ) : null}
          <Box>
            <label htmlFor="backstop-edit-why">{texts.why}</label>
            <Input id="backstop-edit-why" size="sm" value={why} onChange={(event) => setWhy(event.target.value)} data-testid="edit-why" />
          </Box>
          <Button
            size="sm"
            alignSelf="start"
            disabled={sent || why_not !== null || form === null || !why.trim() || (wrong && !although)}
            onClick={() => void send()}
            data-testid="send-edit"
          >
            {texts.deadLetters.edit}
          </Button>
        </>
      ) : null}
      {sent && form ? <Text role="note" data-testid="edit-sent">{texts.deadLetters.sent} <Out href={form.page}>{texts.cases.inAirflow}</Out></Text> : null}
      {problem ? <Failure problem={problem} /> : null}
    </Stack>
  );
};
