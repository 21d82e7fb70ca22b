// Draws ../mcrengine.json with Grafana's panel library. Parameters of the page: prometheus (a URL), start and end
// (ISO 8601, in the past), and step (seconds between two points).
import { createRoot } from 'react-dom/client';
import { useEffect, useState } from 'react';
import {
    FieldType, ThemeContext, createDataFrame, createTheme, dateTime, getDisplayProcessor, getFieldDisplayName,
} from '@grafana/data';
import { GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
import dashboard from '../mcrengine.json';

const parameters = new URLSearchParams(location.search);
const server = parameters.get('prometheus') ?? 'http://127.0.0.1:9090';
const [start, end] = ['start', 'end'].map((name) => new Date(parameters.get(name)));
const step = Number(parameters.get('step') ?? 15);
const theme = createTheme({ colors: { mode: 'light' } });
const [width, rowHeight, gap] = [1400, 30, 8]; // pixels; Grafana's grid has 24 columns, and rows of 30 pixels

/** The defaults of Grafana's time-series panel. */
const custom = {
    drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none',
    showPoints: 'auto', pointSize: 5, spanNulls: false, axisPlacement: 'auto', axisColorMode: 'text',
    axisBorderShow: false, scaleDistribution: { type: 'linear' }, stacking: { mode: 'none', group: 'A' },
    hideFrom: { legend: false, tooltip: false, viz: false }, thresholdsStyle: { mode: 'off' },
};

/** The name of a curve: the legend's format, or, like Grafana, the labels of the series, or the expression. */
function nameOf(target, { __name__, ...labels }) {
    if (target.legendFormat && target.legendFormat !== '__auto') {
        return target.legendFormat.replace(/{{\s*(\w+)\s*}}/g, (_, label) => labels[label] ?? '');
    }
    const list = Object.entries(labels).map(([label, value]) => `${label}="${value}"`).join(', ');
    return list ? `{${list}}` : target.expr;
}

/** The colour that the dashboard gives to the curve `name`. */
function colourOf(name, overrides) {
    const override = overrides.find(({ matcher }) => matcher.id === 'byName' && matcher.options === name);
    return override?.properties.find(({ id }) => id === 'color')?.value ?? { mode: 'palette-classic' };
}

async function query(target, { defaults, overrides }) {
    const range = `start=${start.getTime() / 1000}&end=${end.getTime() / 1000}&step=${step}`;
    const answer = await fetch(`${server}/api/v1/query_range?query=${encodeURIComponent(target.expr)}&${range}`);
    const { status, error, data } = await answer.json();
    if (status !== 'success') throw new Error(error);
    const count = Math.floor((end - start) / 1000 / step) + 1;
    const times = Array.from({ length: count }, (_, i) => start / 1000 + i * step);
    return data.result.map(({ metric, values }) => {
        const displayNameFromDS = nameOf(target, metric);
        const color = colourOf(displayNameFromDS, overrides);
        const config = { ...defaults, custom: { ...custom, ...defaults.custom }, displayNameFromDS, color };
        const found = new Map(values);
        const numbers = times.map((time) => Number(found.get(time) ?? NaN)); // a missing point is a gap
        return createDataFrame({
            refId: target.refId,
            fields: [
                { name: 'Time', type: FieldType.time, values: times.map((time) => time * 1000) },
                { name: 'Value', type: FieldType.number, values: numbers, config },
            ],
        });
    });
}

function prepare(frames) {
    let series = 0;
    for (const field of frames.flatMap((frame) => frame.fields)) {
        if (field.type === FieldType.number) {
            field.state = { seriesIndex: series++ };
            field.values = field.values.map((value) => (Number.isFinite(value) ? value : null));
        }
        field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
    }
    for (const frame of frames) {
        for (const field of frame.fields) {
            field.state = { ...field.state, displayName: getFieldDisplayName(field, frame, frames) };
        }
    }
    return frames;
}

function Panel({ panel }) {
    const [frames, setFrames] = useState();
    useEffect(() => {
        Promise.all(panel.targets.map((target) => query(target, panel.fieldConfig)))
            .then((answers) => setFrames(prepare(answers.flat())));
    }, []);
    const { x, y, w, h } = panel.gridPos;
    const column = (width + gap) / 24;
    const place = { position: 'absolute', left: x * column + gap, top: y * (rowHeight + gap) + gap };
    const legend = { displayMode: 'list', placement: 'bottom', showLegend: true, calcs: [], ...panel.options?.legend };
    const [from, to] = [dateTime(start), dateTime(end)];
    const time = { timeRange: { from, to, raw: { from, to } }, timeZone: 'utc' };
    const frame = { width: w * column - gap, height: h * (rowHeight + gap) - gap };
    return <div style={place}>
        <PanelChrome title={panel.title} description={panel.description} {...frame}>
            {(innerWidth, innerHeight) => frames && (frames.length === 0
                ? <div style={{ height: innerHeight, display: 'grid', placeItems: 'center' }}>No data</div>
                : <TimeSeries frames={frames} width={innerWidth} height={innerHeight} legend={legend} {...time} />)}
        </PanelChrome>
    </div>;
}

createRoot(document.getElementById('root')).render(<ThemeContext.Provider value={theme}>
    <GlobalStyles />
    {dashboard.panels.map((panel) => <Panel key={panel.id} panel={panel} />)}
</ThemeContext.Provider>);
