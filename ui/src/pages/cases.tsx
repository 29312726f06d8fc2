import { Box, Button, Flex, Input, Stack, Text, Textarea } from "@chakra-ui/react";
import { useState } from "react";
import { useSearchParams } from "react-router-dom";
import { answer, api, ask, problemOf, useGet, useList, type FormOf, type Problem, type Row } from "../api";
import { Empty, Facts, Failure, FilterBar, Loaded, MessageLink, More, Out, Raw, Rows, Said, Section, Tag, Title, To, When, filterOf, pathOf } from "../parts";
import { texts } from "../texts";

type CaseRowOf = { case: number; kind: string; topic: string; group: string; severity: string; state: string; summary: string; opened_at: string; last_seen_at: string; decision: string | null; decided_by: string | null; decided_at: string | null; reopened: number };
type AnswerOf = { name: string; does: string; allowed: boolean; why_not: string | null };
export type CaseOf = CaseRowOf & {
  evidence: Row; run: number | null; why: string | null; members: number; open_members: number; dead_letters: number;
  proposed: string | null; proposed_by: string | null; proposed_why: string | null;
  actions: AnswerOf[]; form: FormOf | null;
  notes: { number: number; written_at: string; written_by: string; note: string }[];
  questions: { number: number; asked_at: string; answered_by: string | null; answer: string | null; how: string | null; said: string | null }[];
};
type MemberOf = { topic: string; message_id: string; group: string; settled_at: string | null };

export const Cases = () => {
  const [search] = useSearchParams();
  const filter = search.get("filter") ?? "state:open";
  const got = useList<CaseRowOf>(`/cases?filter=${encodeURIComponent(filter)}`);
  return (
    <>
      <Title>{texts.cases.title}</Title>
      <Flex gap={3} mb={2} wrap="wrap">
        {texts.cases.states.map(([state, label]) => (
          <To key={state} to={pathOf("/cases", { filter: state })} current={filter.split(/\s+/).includes(state)}>{label}</To>
        ))}
      </Flex>
      <FilterBar list="cases" />
      <Loaded got={got}>
        {(rows) => (
          <Rows
            label={texts.cases.title}
            empty={texts.cases.empty}
            rows={rows}
            columns={[
              { name: texts.columns.case, cell: (row) => <To to={pathOf(`/cases/${row.case}`)}>{row.case}</To> },
              { name: texts.columns.severity, cell: (row) => <Tag>{row.severity}</Tag> },
              { name: texts.columns.kind, cell: (row) => row.kind },
              { name: texts.columns.topic, cell: (row) => row.topic },
              { name: texts.columns.group, cell: (row) => row.group },
              { name: texts.columns.state, cell: (row) => <Tag>{row.state}</Tag> },
              { name: texts.columns.summary, wide: true, cell: (row) => <Box wordBreak="break-word"><Said>{row.summary}</Said></Box> },
              { name: texts.columns.opened, cell: (row) => <When at={row.opened_at} /> },
            ]}
          />
        )}
      </Loaded>
      <More next={got.next} more={got.more} />
    </>
  );
};

const number = (value: number): string => (value > 10_000 ? texts.cases.many : value.toLocaleString());

export const Case = ({ id }: { id: string }) => {
  const got = useGet<CaseOf>(`/cases/${encodeURIComponent(id)}`, 15);
  return (
    <Loaded got={got}>
      {(row) => (
        <>
          <Title>{`${texts.columns.case} ${row.case}: ${row.kind}`}</Title>
          <Text mb={3} wordBreak="break-word" data-testid="summary"><Said>{row.summary}</Said></Text>
          <Facts
            facts={[
              [texts.columns.state, <Tag>{row.state}</Tag>],
              [texts.columns.severity, <Tag>{row.severity}</Tag>],
              [texts.columns.topic, row.topic],
              [texts.columns.group, row.group],
              [texts.columns.opened, <When at={row.opened_at} />],
              [texts.columns.last, <When at={row.last_seen_at} />],
              [texts.cases.members, texts.cases.radius(number(row.open_members), number(row.members))],
              [texts.nav.deadLetters, row.dead_letters ? <To to={pathOf("/dead-letters", { filter: filterOf({ case: row.case }) })}>{number(row.dead_letters)}</To> : null],
              [texts.columns.decision, row.decision ? `${row.decision}, ${row.decided_by ?? ""}: ${row.why ?? ""}` : null],
            ]}
          />
          {row.proposed ? <Text mb={3}>{`${texts.cases.proposed(row.proposed_by ?? "", row.proposed)}: ${row.proposed_why ?? ""}`}</Text> : null}
          {row.actions.length > 0 ? <Section title={texts.cases.answers}><Answers row={row} after={got.again} /></Section> : null}
          <Section title={texts.cases.members}><Members id={id} /></Section>
          <Section title={texts.cases.evidence}><Raw value={row.evidence} /></Section>
          <Section title={texts.cases.notes}><Notes row={row} after={got.again} /></Section>
          <Section title={texts.cases.history}>
            <Rows
              label={texts.cases.history}
              empty={texts.none}
              rows={row.questions}
              columns={[
                { name: texts.columns.at, cell: (one) => <When at={one.asked_at} /> },
                { name: texts.columns.by, cell: (one) => one.answered_by ?? "" },
                { name: texts.columns.answer, cell: (one) => one.answer ?? "" },
                { name: texts.columns.state, cell: (one) => one.how ?? "" },
                { name: texts.columns.what, cell: (one) => <Said>{one.said ?? ""}</Said> },
              ]}
            />
          </Section>
        </>
      )}
    </Loaded>
  );
};

const FIELDS: Record<string, { label: string; lines?: boolean; number?: boolean; of: string[] | null }> = {
  ids: { label: texts.cases.ids, lines: true, of: null },
  more: { label: texts.cases.more, number: true, of: ["raise"] },
  sample: { label: texts.cases.sample, number: true, of: ["replay_sample"] },
  broker: { label: texts.cases.broker, of: ["drained"] },
  secret_content: { label: texts.cases.content, lines: true, of: ["edit", "edit_head"] },
  secret_content_base64: { label: texts.cases.contentBase64, lines: true, of: ["edit", "edit_head"] },
};

// The answer is Airflow's own record of who answered what: it goes where Airflow's form sends it.
const Answers = ({ row, after }: { row: CaseOf; after: () => void }) => {
  const [chosen, setChosen] = useState<string | null>(null);
  const [given, setGiven] = useState<Record<string, string>>({});
  const [problem, setProblem] = useState<Problem | null>(null);
  const [taken, setTaken] = useState(false);
  const form = row.form;
  const send = async () => {
    if (form === null || chosen === null) return;
    setProblem(null);
    const inputs = Object.fromEntries(
      form.fields.flatMap((name) => {
        const text = given[name];
        return text?.trim() ? [[name, FIELDS[name]?.number ? Number(text) : text]] : [];
      }),
    );
    try {
      await answer(form, chosen, inputs);
      setTaken(true);
      after();
    } catch (error) {
      setProblem(problemOf(error));
    }
  };
  const set = (name: string) => (event: { target: { value: string } }) => setGiven({ ...given, [name]: event.target.value });
  return (
    <Stack gap={2}>
      {form === null ? <Text>{texts.cases.notAsked}</Text> : null}
      {row.actions.map((action) => (
        <Flex key={action.name} gap={3} align="start" wrap="wrap">
          <Button
            size="sm"
            minW="8rem"
            variant={chosen === action.name ? "solid" : "outline"}
            aria-pressed={chosen === action.name}
            disabled={!action.allowed || form === null || taken}
            onClick={() => setChosen(action.name)}
            data-testid={`answer-${action.name}`}
          >
            {action.name}
          </Button>
          <Box flex="1 1 14rem">
            <Text fontSize="sm">{action.does}</Text>
            {action.allowed ? null : <Text fontSize="xs" color="fg.muted">{`${texts.greyed}: ${action.why_not ?? ""}`}</Text>}
          </Box>
        </Flex>
      ))}
      {chosen !== null && form !== null && !taken ? (
        <Stack gap={2} borderWidth={1} borderRadius="md" p={3} maxW="36rem">
          <label htmlFor="backstop-why">{`${chosen}: ${texts.why}`}</label>
          <Textarea id="backstop-why" value={given["why"] ?? ""} onChange={set("why")} data-testid="why" />
          {form.fields.filter((name) => FIELDS[name] && (FIELDS[name].of === null || FIELDS[name].of.includes(chosen))).map((name) => (
            <Box key={name}>
              <label htmlFor={`backstop-${name}`}>{FIELDS[name]!.label}</label>
              {FIELDS[name]!.lines ? (
                <Textarea id={`backstop-${name}`} value={given[name] ?? ""} onChange={set(name)} />
              ) : (
                <Input id={`backstop-${name}`} type={FIELDS[name]!.number ? "number" : "text"} min={1} value={given[name] ?? ""} onChange={set(name)} />
              )}
            </Box>
          ))}
          <Preview key={chosen} row={row} action={chosen} />
          <Button size="sm" alignSelf="start" disabled={!given["why"]?.trim()} onClick={() => void send()} data-testid="send">
            {`${texts.cases.answer}: ${chosen}`}
          </Button>
        </Stack>
      ) : null}
      {problem ? <Failure problem={problem} /> : null}
      {taken ? <Text role="status" data-testid="taken">{texts.cases.taken}</Text> : null}
      {form ? <Text fontSize="sm"><Out href={form.page}>{texts.cases.inAirflow}</Out></Text> : null}
    </Stack>
  );
};

type PreviewOf = { about_case: boolean; read: number; open: number; fits: number; done: number; left_out: string[] };

// What the answer would do now; approving and rejecting apply what was proposed, which has its own text.
const Preview = ({ row, action }: { row: CaseOf; action: string }) => {
  const [asked, setAsked] = useState(false);
  const got = useGet<PreviewOf>(asked ? `/cases/${row.case}/preview?action=${encodeURIComponent(action)}` : null);
  if (row.proposed) return null;
  if (!asked)
    return (
      <Button size="sm" variant="outline" alignSelf="start" onClick={() => setAsked(true)} data-testid="preview">
        {texts.cases.preview}
      </Button>
    );
  return (
    <Loaded got={got}>
      {(found) => (
        <Box data-testid="previewed">
          <Text fontSize="sm">{found.about_case ? texts.cases.aboutCase : texts.cases.previewed(found.fits, found.read, number(found.open), found.done)}</Text>
          {found.left_out.map((one) => <Text key={one} fontSize="xs">{`${texts.cases.leftOut}: ${one}`}</Text>)}
        </Box>
      )}
    </Loaded>
  );
};

const Members = ({ id }: { id: string }) => {
  const got = useList<MemberOf>(`/cases/${encodeURIComponent(id)}/members`);
  return (
    <>
      <Loaded got={got}>
        {(rows) => (
          <Rows
            label={texts.cases.members}
            empty={texts.none}
            rows={rows}
            columns={[
              { name: texts.columns.message, cell: (row) => <MessageLink topic={row.topic} id={row.message_id} /> },
              { name: texts.columns.group, cell: (row) => row.group },
              { name: texts.columns.state, cell: (row) => (row.settled_at ? <When at={row.settled_at} /> : <Tag kind="open">{texts.cases.open}</Tag>) },
            ]}
          />
        )}
      </Loaded>
      <More next={got.next} more={got.more} />
    </>
  );
};

const Notes = ({ row, after }: { row: CaseOf; after: () => void }) => {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const send = async () => {
    setProblem(null);
    try {
      await ask(api(`/cases/${row.case}/notes`), "POST", { note: text });
      setText("");
      after();
    } catch (error) {
      setProblem(problemOf(error));
    }
  };
  return (
    <Stack gap={2}>
      {row.notes.length === 0 ? <Empty>{texts.cases.noNotes}</Empty> : row.notes.map((note) => (
        <Box key={note.number} data-testid="note">
          <Text fontSize="xs" color="fg.muted">{note.written_by} <When at={note.written_at} /></Text>
          <Text whiteSpace="pre-wrap" wordBreak="break-word">{note.note}</Text>
        </Box>
      ))}
      <label htmlFor="backstop-note">{texts.cases.addNote}</label>
      <Textarea id="backstop-note" maxW="36rem" value={text} onChange={(event) => setText(event.target.value)} data-testid="note-text" />
      {problem ? <Failure problem={problem} /> : null}
      <Button size="sm" alignSelf="start" disabled={!text.trim()} onClick={() => void send()} data-testid="note-send">{texts.cases.addNote}</Button>
    </Stack>
  );
};
