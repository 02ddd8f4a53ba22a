// All texts of the page in both languages. {name} is filled in by t().

import { readSetting, writeSetting } from "./settings.js";

const en = {
  answerFailed: "No answer came.",
  cancel: "Cancel",
  closeSidebar: "Close the list",
  conversation: "Conversation",
  conversations: "Conversations",
  cutAnswer: "Cut off: the answer reached the limit of tokens.",
  cutPrompt: "The conversation no longer fits into the model's context. Start a new one.",
  cutThinking: "Cut off: the limit of tokens was reached while thinking, before an answer.",
  delete: "Delete",
  deleteQuestion: "Delete “{title}”?",
  finishCancelled: "Stopped.",
  finishRepetition: "Stopped: the text was repeating itself.",
  firstToken: "first token after {seconds} s",
  keyQuestion: "This server asks for an API key.",
  language: "Language",
  loading: "loading the model …",
  maxTokens: "Token limit",
  message: "Message",
  networkLost: "The connection to the server was lost.",
  newConversation: "New conversation",
  note: "Models make mistakes. Check what matters.",
  ok: "OK",
  overloaded: "busy",
  ready: "ready",
  stopping: "shutting down",
  rename: "Rename",
  renameQuestion: "New name",
  retry: "Try again",
  send: "Send",
  serverBusy: "The server is busy.",
  serverBusySeconds: "The server is busy: try again in {seconds} s.",
  serverSays: "The server answered with an error ({status}): {text}",
  speed: "{speed} tokens/s",
  stop: "Stop",
  storageFull: "The browser's storage is full: delete old conversations.",
  theme: "Theme",
  themeAuto: "As the system",
  themeDark: "Dark",
  themeLight: "Light",
  thinking: "Thinking … {seconds} s",
  thoughtFor: "Thought for {seconds} s",
  tokens: "{n} tokens",
  unreachable: "server not reached",
  waiting: "Reading … {seconds} s",
  wantsKey: "The server wants a valid API key.",
  welcome: "Ask anything. The model runs on your own hardware.",
  you: "You",
};

const zh = {
  answerFailed: "没有收到回答。",
  cancel: "取消",
  closeSidebar: "关闭列表",
  conversation: "对话内容",
  conversations: "对话列表",
  cutAnswer: "已截断：回答达到了 token 上限。",
  cutPrompt: "对话已超出模型的上下文长度，请新建对话。",
  cutThinking: "已截断：思考过程中达到了 token 上限，尚未给出回答。",
  delete: "删除",
  deleteQuestion: "删除“{title}”？",
  finishCancelled: "已停止。",
  finishRepetition: "已停止：内容开始重复。",
  firstToken: "首个 token 用时 {seconds} 秒",
  keyQuestion: "服务器需要 API 密钥。",
  language: "语言",
  loading: "正在加载模型…",
  maxTokens: "token 上限",
  message: "消息",
  networkLost: "与服务器的连接已断开。",
  newConversation: "新建对话",
  note: "模型可能出错，重要内容请核实。",
  ok: "确定",
  overloaded: "繁忙",
  ready: "就绪",
  stopping: "正在关闭",
  rename: "重命名",
  renameQuestion: "新名称",
  retry: "重试",
  send: "发送",
  serverBusy: "服务器繁忙。",
  serverBusySeconds: "服务器繁忙：请在 {seconds} 秒后重试。",
  serverSays: "服务器返回错误（{status}）：{text}",
  speed: "{speed} tokens/秒",
  stop: "停止",
  storageFull: "浏览器存储已满：请删除旧对话。",
  theme: "外观",
  themeAuto: "跟随系统",
  themeDark: "深色",
  themeLight: "浅色",
  thinking: "思考中… {seconds} 秒",
  thoughtFor: "思考了 {seconds} 秒",
  tokens: "{n} tokens",
  unreachable: "无法连接服务器",
  waiting: "正在读取… {seconds} 秒",
  wantsKey: "服务器要求有效的 API 密钥。",
  welcome: "有什么想问的？模型就运行在你自己的硬件上。",
  you: "你",
};

const languages = { en, zh };

export function language() {
  const chosen = readSetting("language") ?? navigator.language.slice(0, 2);
  return chosen in languages ? chosen : "en";
}

/** Switches the page to `name` ("en" or "zh"), for good. */
export function setLanguage(name) {
  writeSetting("language", name);
  fillTexts();
}

/** The text `key` in the page's language. */
export function t(key, values = {}) {
  return languages[language()][key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** Writes all texts that index.html names. */
export function fillTexts() {
  document.documentElement.lang = language() === "zh" ? "zh-CN" : "en";
  for (const element of document.querySelectorAll("[data-text]")) {
    element.textContent = t(element.dataset.text);
  }
  for (const element of document.querySelectorAll("[data-label]")) {
    const text = t(element.dataset.label);
    element.setAttribute("aria-label", text);
    if (element.tagName === "BUTTON") element.title = text;
    if (element.tagName === "TEXTAREA") element.placeholder = text;
  }
}
