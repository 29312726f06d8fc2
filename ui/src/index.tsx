// The component that Airflow mounts at /plugin/backstop/*.
import { Badge, Box, Button, ChakraProvider, Flex } from "@chakra-ui/react";
import { useEffect, useRef, type ReactNode } from "react";
import { NavLink, useLocation, useParams } from "react-router-dom";
import { useGet } from "./api";
import { BASE, CONTENT, Empty } from "./parts";
import { Case, Cases } from "./pages/cases";
import { DeadLetter, DeadLetters } from "./pages/dead_letters";
import { Deliveries } from "./pages/deliveries";
import { Flow } from "./pages/flow";
import { Messages } from "./pages/messages";
import { Card, Duties, Overview } from "./pages/overview";
import { Pair } from "./pages/pair";
import { Proof, Proofs } from "./pages/proofs";
import { Replay } from "./pages/replays";
import { Resends } from "./pages/resends";
import { Run, Runs } from "./pages/runs";
import { Settings } from "./pages/settings";
import { texts } from "./texts";

const PAGES: [string, string, (id?: string) => ReactNode][] = [
  ["", texts.nav.overview, () => <Overview />],
  ["messages", texts.nav.messages, () => <Messages />],
  ["cases", texts.nav.cases, (id) => (id ? <Case id={id} /> : <Cases />)],
  ["dead-letters", texts.nav.deadLetters, (id) => (id ? <DeadLetter id={id} /> : <DeadLetters />)],
  ["flow", texts.nav.flow, () => <Flow />],
  ["resends", texts.nav.resends, () => <Resends />],
  ["runs", texts.nav.runs, (id) => (id ? <Run id={id} /> : <Runs />)],
  ["proofs", texts.nav.proofs, (id) => (id ? <Proof id={id} /> : <Proofs />)],
  ["settings", texts.nav.settings, () => <Settings />],
];

const HOST_TITLE = document.title;
// The page that was shown last. Airflow may mount the console anew for each address.
let shown: string | null = null;

const Console = () => {
  const rest = (useParams()["*"] ?? "").split("/").filter(Boolean);
  const [name = "", id] = rest;
  const { pathname, search } = useLocation();
  const content = useRef<HTMLDivElement>(null);
  // From page to page the focus follows: to the title, or to where it will be when the page is there.
  useEffect(() => {
    const from = shown;
    shown = pathname;
    if (from !== null && from !== pathname && !content.current?.contains(document.activeElement)) (content.current?.querySelector("h1") ?? content.current)?.focus();
  }, [pathname]);
  useEffect(
    () => () => {
      document.title = HOST_TITLE;
    },
    [],
  );
  const page =
    name === "deliveries" ? () => <Deliveries />
    : name === "duties" ? () => <Duties />
    : name === "pairs" ? () => <Pair />
    : name === "replays" ? (plan?: string) => (plan ? <Replay id={plan} /> : <Resends />)
    : PAGES.find(([one]) => one === name)?.[2];
  const waiting = useGet<{ cases: number }>("/waiting", 60).data?.cases ?? 0;
  // "/" goes to the box of the page: its search or its filter.
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
      const box = content.current?.querySelector<HTMLInputElement>("input");
      if (box) {
        event.preventDefault();
        box.focus();
      }
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
  return (
    <Box p={{ base: 2, md: 4 }} data-testid="backstop" data-at={pathname + search} h="full" overflowY="auto" color="fg" overflowWrap="anywhere">
      <Button
        size="sm"
        position="absolute"
        zIndex="skipNav"
        top={1}
        left="-999rem"
        _focusVisible={{ left: 1 }}
        onClick={() => content.current?.focus()}
        data-testid="skip"
      >
        {texts.skip}
      </Button>
      <Flex as="nav" aria-label={texts.title} gap={1} wrap="wrap" mb={4} borderBottomWidth={1} pb={2}>
        {PAGES.map(([one, label]) => {
          const current = one === name;
          return (
            <Box
              asChild
              key={one}
              px={2}
              py={1}
              borderRadius="md"
              fontSize="sm"
              bg={current ? "bg.emphasized" : undefined}
              fontWeight={current ? "semibold" : "normal"}
              _hover={{ bg: "bg.muted" }}
            >
              <NavLink to={`${BASE}${one ? `/${one}` : ""}`} end aria-current={current ? "page" : undefined}>
                {label}
                {one === "cases" && waiting > 0 ? (
                  <Badge ms={1} colorPalette="red" variant="solid" data-testid="badge" title={texts.cases.waiting(waiting)}>
                    {waiting.toLocaleString()}
                  </Badge>
                ) : null}
              </NavLink>
            </Box>
          );
        })}
      </Flex>
      <Box ref={content} key={pathname} minW={0} id={CONTENT} tabIndex={-1}>
        {page ? page(id) : <Empty>{texts.noPage}</Empty>}
      </Box>
    </Box>
  );
};

const Backstop = () => (
  <ChakraProvider value={(globalThis as unknown as { ChakraUISystem: never }).ChakraUISystem}>
    <Console />
  </ChakraProvider>
);

// On Airflow's home: what is wrong, and what waits for the viewer.
const BackstopCard = () => (
  <ChakraProvider value={(globalThis as unknown as { ChakraUISystem: never }).ChakraUISystem}>
    <Card />
  </ChakraProvider>
);

(globalThis as unknown as Record<string, unknown>)["BackstopCard"] = BackstopCard;
(globalThis as unknown as Record<string, unknown>)["Backstop"] = Backstop;
(globalThis as unknown as Record<string, unknown>)["AirflowPlugin"] = Backstop;
