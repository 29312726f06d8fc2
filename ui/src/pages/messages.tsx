import { Box, Button, Flex, Input, Text } from "@chakra-ui/react";
import { useState } from "react";
import { useSearchParams } from "react-router-dom";
import { useGet, type Action, type Row } from "../api";
import { Do, Empty, Loaded, MessageLink, Raw, Rows, Said, Section, Tag, Title, To, When, pathOf } from "../parts";
import { texts } from "../texts";

type FoundOf = { messages: { topic: string; message_id: string; found_in: string[] }[]; searched: string[]; unreachable: Record<string, string> };
type StoryOf = {
  topic: string;
  message_id: string;
  found: boolean;
  sentence: string;
  deliveries: { group: string; owed: boolean; verdict: string | null; reason: string | null; evidence: string; next_step: string | null; log: Row | null }[];
  timeline: { at: string; kind: string; group: string | null; text: string; details: Row }[];
  cases: { case_id: number; kind: string; state: string }[];
  dead_letters: { dead_letter_id: number; state: string }[];
  searched: string[];
  unreachable: Record<string, string>;
  actions: Action[];
} & Row;

const Away = ({ unreachable }: { unreachable: Record<string, string> }) =>
  Object.entries(unreachable).map(([name, why]) => (
    <Text key={name} color="red.fg" data-testid="away">{`${texts.messages.away}: ${name}: ${why}`}</Text>
  ));

export const Messages = () => {
  const [search, setSearch] = useSearchParams();
  const [topic, id, text] = [search.get("topic"), search.get("id"), search.get("text")];
  const [typed, setTyped] = useState(text ?? id ?? "");
  return (
    <>
      <Title>{texts.nav.messages}</Title>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (typed.trim()) setSearch({ text: typed.trim() });
        }}
      >
        <label htmlFor="backstop-message">{texts.messages.label}</label>
        <Flex gap={2} mt={1} wrap="wrap">
          <Input id="backstop-message" flex="1 1 14rem" value={typed} onChange={(event) => setTyped(event.target.value)} data-testid="search" />
          <Button type="submit">{texts.messages.search}</Button>
        </Flex>
        <Text fontSize="xs" color="fg.muted" mb={4}>{texts.messages.help}</Text>
      </form>
      {topic !== null && id !== null ? <Story topic={topic} id={id} /> : text !== null ? <Search text={text} /> : <Empty>{texts.messages.empty}</Empty>}
    </>
  );
};

const Search = ({ text }: { text: string }) => {
  const got = useGet<FoundOf>(`/messages?text=${encodeURIComponent(text)}`);
  return (
    <Loaded got={got}>
      {(found) => {
        const only = found.messages.length === 1 ? found.messages[0] : undefined;
        return (
          <>
            <Away unreachable={found.unreachable} />
            {only ? (
              <Story topic={only.topic} id={only.message_id} />
            ) : (
              <Rows
                label={texts.messages.foundIn}
                empty={`${texts.messages.nothing} ${texts.messages.searched}: ${found.searched.join(", ")}.`}
                rows={found.messages}
                columns={[
                  { name: texts.columns.topic, cell: (one) => one.topic },
                  { name: texts.columns.message, cell: (one) => <MessageLink topic={one.topic} id={one.message_id} /> },
                  { name: texts.messages.foundIn, cell: (one) => one.found_in.join(", ") },
                ]}
              />
            )}
          </>
        );
      }}
    </Loaded>
  );
};

const Story = ({ topic, id }: { topic: string; id: string }) => {
  const got = useGet<StoryOf>(`/message?topic=${encodeURIComponent(topic)}&id=${encodeURIComponent(id)}`);
  const [run, setRun] = useState<string | null>(null);
  return (
    <Loaded got={got}>
      {(story) => (
        <>
          <Text fontWeight="semibold" wordBreak="break-all">{`${story.topic} ${story.message_id}`}</Text>
          <Text mb={3} data-testid="sentence"><Said>{story.sentence}</Said></Text>
          <Away unreachable={story.unreachable} />
          <Flex gap={3} mb={4} wrap="wrap">
            {story.actions.filter((action) => action.name === "resend").map((action) => (
              <Do key={action.name} label={texts.messages.resend} action={action} after={(said) => setRun(String((said as Row)["dag_run_id"]))} />
            ))}
            {run ? <Text role="status" data-testid="asked">{texts.messages.resent} <To to={`/dags/resend/runs/${encodeURIComponent(run)}`}>{run}</To></Text> : null}
          </Flex>
          <Section title={texts.messages.groups}>
            <Rows
              label={texts.messages.groups}
              empty={texts.none}
              rows={story.deliveries}
              columns={[
                { name: texts.columns.group, cell: (one) => one.group },
                { name: texts.columns.verdict, cell: (one) => (one.verdict ? <Tag>{one.verdict}</Tag> : texts.none) },
                { name: texts.messages.evidence, wide: true, cell: (one) => <Said>{one.evidence}</Said> },
                { name: texts.messages.next, wide: true, cell: (one) => <Said>{one.next_step ?? ""}</Said> },
              ]}
            />
          </Section>
          <Section title={texts.messages.timeline}>
            {story.timeline.length === 0 ? <Empty>{texts.messages.nothing}</Empty> : (
              <Box as="ol" borderStartWidth={2} ps={4} data-testid="timeline">
                {story.timeline.map((event, number) => (
                  <Box as="li" key={number} mb={2}>
                    <Flex gap={3} wrap="wrap" align="start">
                      <Box minW="9rem"><When at={event.at} /></Box>
                      <Tag>{event.kind}</Tag>
                      <Box flex="1 1 12rem" minW={0}><Said>{event.text}</Said></Box>
                    </Flex>
                  </Box>
                ))}
              </Box>
            )}
          </Section>
          {story.cases.length > 0 ? (
            <Section title={texts.nav.cases}>
              {story.cases.map((one) => <Text key={one.case_id}><To to={pathOf(`/cases/${one.case_id}`)}>{`${one.case_id}: ${one.kind}, ${one.state}`}</To></Text>)}
            </Section>
          ) : null}
          {story.dead_letters.length > 0 ? (
            <Section title={texts.nav.deadLetters}>
              {story.dead_letters.map((one) => <Text key={one.dead_letter_id}><To to={pathOf(`/dead-letters/${one.dead_letter_id}`)}>{`${one.dead_letter_id}: ${one.state}`}</To></Text>)}
            </Section>
          ) : null}
          <details>
            <summary>{texts.messages.raw}</summary>
            <Raw value={Object.fromEntries(Object.entries(story).filter(([name]) => name !== "actions" && name !== "timeline"))} />
          </details>
        </>
      )}
    </Loaded>
  );
};
