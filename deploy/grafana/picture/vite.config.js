export default {
    publicDir: 'node_modules/@grafana/ui/dist', // the library asks for /public/img/icons
    server: { fs: { allow: ['..'] } },
    esbuild: { jsx: 'automatic' },
};
