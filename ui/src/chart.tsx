// Stacked bars, with the same numbers for who cannot see them.
import { Box, VisuallyHidden } from "@chakra-ui/react";
import { BarController, BarElement, CategoryScale, Chart, Legend, LinearScale, Tooltip } from "chart.js";
import { useEffect, useRef } from "react";

Chart.register(BarController, BarElement, CategoryScale, LinearScale, Legend, Tooltip);

export type Stack = { label: string; colour: string; values: number[] };

export const Bars = ({ label, names, stacks }: { label: string; names: string[]; stacks: Stack[] }) => {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    if (!canvas.current) return;
    const style = getComputedStyle(canvas.current);
    const text = style.color;
    const chart = new Chart(canvas.current, {
      type: "bar",
      data: {
        labels: names,
        datasets: stacks.map((stack) => ({ label: stack.label, data: stack.values, backgroundColor: stack.colour, stack: "all" })),
      },
      options: {
        animation: false,
        maintainAspectRatio: false,
        scales: {
          x: { stacked: true, ticks: { color: text, maxRotation: 0, autoSkip: true }, grid: { display: false } },
          y: { stacked: true, beginAtZero: true, ticks: { color: text, precision: 0 } },
        },
        plugins: { legend: { position: "bottom", labels: { color: text, boxWidth: 12 } } },
      },
    });
    return () => chart.destroy();
  }, [names, stacks]);
  return (
    <Box position="relative">
      <Box h="16rem" color="fg">
        <canvas ref={canvas} role="img" aria-label={label} />
      </Box>
      <VisuallyHidden>
        <table>
          <caption>{label}</caption>
          <thead>
            <tr>
              <td />
              {stacks.map((stack) => <th key={stack.label} scope="col">{stack.label}</th>)}
            </tr>
          </thead>
          <tbody>
            {names.map((name, place) => (
              <tr key={place}>
                <th scope="row">{name}</th>
                {stacks.map((stack) => <td key={stack.label}>{stack.values[place] ?? 0}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </VisuallyHidden>
    </Box>
  );
};
