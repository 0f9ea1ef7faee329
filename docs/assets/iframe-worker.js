// Pages that are opened from disk may start no worker, and the search wants one. There, an iframe does its work.
// The name is how mkdocs-material's offline plugin knows that it need not fetch one from the network.
(() => {
  if (location.protocol !== "file:") return;

  // In the iframe: what a worker's script expects of its surroundings.
  const surroundings = () => {
    window.postMessage = (message) => parent.postMessage(message, "*");
    window.importScripts = async (...addresses) => {
      for (const address of addresses) {
        await new Promise((done, failed) => {
          const script = Object.assign(document.createElement("script"), { src: address, onload: done, onerror: failed });
          document.body.append(script);
        });
      }
    };
  };

  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true });
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      this.listener = (event) => {
        if (event.source !== inside) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        this.onmessage?.(event);
      };
      addEventListener("message", this.listener);
      this.ready = new Promise((done) => this.frame.addEventListener("load", done, { once: true }));
      inside.document.open();
      inside.document.write(`<body><script>(${surroundings})()<\/script><script src="${address}"><\/script></body>`);
      inside.document.close();
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      removeEventListener("message", this.listener);
      this.frame.remove();
    }
  };
})();
