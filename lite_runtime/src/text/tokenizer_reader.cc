// tokenizer.json, as Hugging Face's tokenizers write it, and what tokenizer_config.json says about BOS.
#include <algorithm>
#include <utility>

#include "io/status.h"
#include "text/json.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace edge_kit {
namespace {

const char* const kTokenizerName = "tokenizer.json";
const char* const kConfigName = "tokenizer_config.json";

class TokenizerReader {
 public:
  explicit TokenizerReader(const Json& document) : document_(document) {}

  TokenizerParts read() {
    const JsonObject root(document_, "the tokenizer");
    if (!root["truncation"].is_null()) unsupported("truncation of every text");
    read_padding(root["padding"]);
    read_normalizer(root["normalizer"]);
    if (!root["pre_tokenizer"].is_null()) read_pre_tokenizer(root["pre_tokenizer"]);
    if (!ends_in_bytes_) unsupported("a pre_tokenizer without ByteLevel");
    if (root["decoder"].is_null()) unsupported("tokens without a decoder");
    read_decoder(root["decoder"]);
    read_post_processor(root["post_processor"]);
    read_model(root["model"]);
    if (!root["added_tokens"].is_null()) {
      root["added_tokens"].each_element("added_tokens", [this](const Json& token) { read_added(token); });
    }
    return std::move(parts_);
  }

  // The first token that the post-processor adds to an empty text, or kNoToken.
  int32_t first_added() const { return first_added_; }

 private:
  [[noreturn]] void damaged(const std::string& problem) const { document_.fail(EK_ERR_FORMAT, problem); }
  [[noreturn]] void unsupported(const std::string& what) const {
    document_.fail(EK_ERR_NOT_SUPPORTED,
                   "the native tokenizer does not do " + what +
                       ". It does byte-level BPE with the patterns of GPT-2, Qwen2, Llama 3 and SmolLM2; "
                       "tokenize in Python, or give token ids");
  }
  void refuse(const Json& flag, const std::string& what) const {
    if (!flag.is_null() && flag.boolean(what.c_str())) unsupported(what);
  }

  // Padding to the longest text of a batch leaves a single one as it is.
  void read_padding(const Json& value) const {
    if (value.is_null()) return;
    const JsonObject padding(value, "padding");
    const Json& strategy = padding["strategy"];
    const bool of_batch = strategy.is_string() && strategy.string("strategy") == "BatchLongest";
    if (!of_batch || !padding["pad_to_multiple_of"].is_null()) unsupported("padding of every text");
  }

  void read_normalizer(const Json& value) {
    if (value.is_null()) return;
    const JsonObject normalizer(value, "normalizer");
    const std::string type = normalizer["type"].string("normalizer.type");
    if (type == "Sequence") {
      normalizer["normalizers"].each_element("normalizers",
                                             [this](const Json& part) { read_normalizer(part); });
    } else if (type == "NFC") {
      parts_.nfc = true;
    } else {
      unsupported("the normalizer " + type);
    }
  }

  void read_pre_tokenizer(const Json& value) {
    const JsonObject part(value, "pre_tokenizer");
    const std::string type = part["type"].string("pre_tokenizer.type");
    if (ends_in_bytes_) unsupported("a pre_tokenizer " + type + " behind ByteLevel");
    if (type == "Sequence") {
      part["pretokenizers"].each_element("pretokenizers",
                                         [this](const Json& inner) { read_pre_tokenizer(inner); });
    } else if (type == "ByteLevel") {
      refuse(part["add_prefix_space"], "ByteLevel with add_prefix_space");
      const Json& use_regex = part["use_regex"];
      if (use_regex.is_null() || use_regex.boolean("use_regex")) parts_.splitters.push_back(Splitter::kGpt2);
      ends_in_bytes_ = true;
    } else if (type == "Digits") {
      if (!part["individual_digits"].boolean("individual_digits")) unsupported("Digits in groups");
      parts_.splitters.push_back(Splitter::kDigits);
    } else if (type == "Split") {
      read_split(part);
    } else {
      unsupported("the pre_tokenizer " + type);
    }
  }

  void read_split(const JsonObject& part) {
    const Json regex = JsonObject(part["pattern"], "Split.pattern")["Regex"];
    if (regex.is_null()) unsupported("Split by a plain string");
    const std::optional<Splitter> splitter = find_splitter(regex.string("Split.pattern"));
    if (!splitter) unsupported("the pattern " + std::string(regex.text()));  // as JSON: always one line
    const std::string behavior = part["behavior"].string("Split.behavior");
    if (behavior != "Isolated") unsupported("Split with the behavior " + behavior);
    refuse(part["invert"], "Split with invert");
    parts_.splitters.push_back(*splitter);
  }

  void read_decoder(const Json& value) {
    const JsonObject decoder(value, "decoder");
    const std::string type = decoder["type"].string("decoder.type");
    if (type == "Sequence") {
      int count = 0;
      decoder["decoders"].each_element("decoders", [&](const Json& part) {
        if (++count > 1) unsupported("several decoders");
        read_decoder(part);
      });
      if (count == 0) unsupported("an empty decoder");
    } else if (type != "ByteLevel") {
      unsupported("the decoder " + type);
    }
  }

  void read_post_processor(const Json& value) {
    if (value.is_null()) return;
    const JsonObject processor(value, "post_processor");
    const std::string type = processor["type"].string("post_processor.type");
    if (type == "Sequence") {
      processor["processors"].each_element("processors",
                                           [this](const Json& part) { read_post_processor(part); });
    } else if (type == "TemplateProcessing") {
      if (has_template_) unsupported("several post_processors TemplateProcessing");
      has_template_ = true;
      read_template(processor);
    } else if (type != "ByteLevel") {
      unsupported("the post_processor " + type);
    }
  }

  void read_template(const JsonObject& processor) {
    std::string name;
    processor["single"].each_element("single", [&](const Json& piece) {
      const Json token = JsonObject(piece, "a piece of single")["SpecialToken"];
      if (!name.empty() || token.is_null()) return;
      name = JsonObject(token, "SpecialToken")["id"].string("SpecialToken.id");
    });
    if (name.empty()) return;
    const Json token = JsonObject(processor["special_tokens"], "special_tokens")[name];
    JsonObject(token, "a special token")["ids"].each_element("ids", [this](const Json& id) {
      if (first_added_ == kNoToken) first_added_ = token_id(id);
    });
  }

  void read_model(const Json& value) {
    const JsonObject model(value, "model");
    const std::string type = model["type"].string("model.type");
    if (type != "BPE") unsupported("the model " + type);
    refuse(model["byte_fallback"], "byte_fallback");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!model[name].is_null() && !model[name].string(name).empty()) unsupported(name);
    }
    const std::string_view dropout = model["dropout"].is_null() ? "0.0" : model["dropout"].text();
    if (dropout != "0.0" && dropout != "0") unsupported("dropout");
    const Json& ignore_merges = model["ignore_merges"];
    parts_.ignore_merges = !ignore_merges.is_null() && ignore_merges.boolean("ignore_merges");
    model["vocab"].each_member("model.vocab", [this](const std::string& token, const Json& id) {
      add(token_id(id), token, Vocabulary::Origin::kModel);
      ++n_model_tokens_;
    });
    check_bytes(model["unk_token"]);
    model["merges"].each_element("model.merges", [this](const Json& merge) { read_merge(merge); });
  }

  // A byte without a token would become the unknown token.
  void check_bytes(const Json& unknown) const {
    if (unknown.is_null() || unknown.string("unk_token").empty()) return;
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      if (parts_.vocabulary.find_word({&c, 1}) == kNoToken) unsupported("unk_token in place of bytes");
    }
  }

  void read_merge(const Json& value) {
    std::string left, right;
    if (value.is_string()) {
      const std::string pair = value.string("a merge");
      const size_t space = pair.find(' ');
      if (space == std::string::npos || pair.find(' ', space + 1) != std::string::npos) {
        damaged("the merge '" + pair + "' is not two tokens with a space between them");
      }
      left = pair.substr(0, space);
      right = pair.substr(space + 1);
    } else {
      int count = 0;
      value.each_element("a merge", [&](const Json& token) {
        if (++count <= 2) (count == 1 ? left : right) = token.string("a token of a merge");
      });
      if (count != 2) damaged("a merge of " + std::to_string(count) + " tokens, expected 2");
    }
    const auto id_of = [this](const std::string& token) {
      const int32_t id = parts_.vocabulary.find(token);
      if (id == kNoToken) damaged("merges name the token '" + token + "', which the vocabulary lacks");
      return static_cast<uint32_t>(id);
    };
    const uint32_t rank = static_cast<uint32_t>(parts_.merges.size());
    parts_.merges.push_back({id_of(left), id_of(right), rank, id_of(left + right)});
  }

  void read_added(const Json& value) {
    const JsonObject token(value, "an added token");
    const std::string content = token["content"].string("content");
    if (content.empty()) return;
    const std::string name = " of the added token " + content;
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) refuse(token[flag], flag + name);
    if (content.size() > AddedTokens::kMaxBytes) {
      unsupported("an added token of " + std::to_string(content.size()) + " bytes");
    }
    // A token has its id in the vocabulary or else the next free one, whatever the file says: Hugging Face's
    // tokenizers number it like this, so other ids are refused.
    const int32_t id = token_id(token["id"]), known = parts_.vocabulary.find(content);
    const int32_t expected = known != kNoToken ? known : std::max(last_added_ + 1, n_model_tokens_);
    if (id != expected) damaged("id " + std::to_string(id) + name + ", expected " + std::to_string(expected));
    if (known == kNoToken) add(id, content, Vocabulary::Origin::kAdded);
    last_added_ = std::max(last_added_, id);
    const bool special = token["special"].boolean("special");
    if (token["normalized"].boolean("normalized")) {
      parts_.added_normalized.push_back({parts_.nfc ? nfc(content) : content, id, special});
    } else {
      parts_.added.push_back({content, id, special});
    }
  }

  int32_t token_id(const Json& value) const {
    const int64_t id = value.integer("a token's id");
    if (id < 0 || id >= Vocabulary::kMaxTokens) {
      damaged("a token's id is " + std::to_string(id) + ", expected 0 to " +
              std::to_string(Vocabulary::kMaxTokens - 1));
    }
    return static_cast<int32_t>(id);
  }

  void add(int32_t id, const std::string& token, Vocabulary::Origin origin) {
    if (parts_.vocabulary.add(id, token, origin)) return;
    damaged("the vocabulary holds the token '" + token + "' or the id " + std::to_string(id) + " twice");
  }

  const Json document_;
  TokenizerParts parts_;
  int32_t first_added_ = kNoToken;  // by the post-processor
  int32_t n_model_tokens_ = 0, last_added_ = kNoToken;
  bool ends_in_bytes_ = false, has_template_ = false;
};

// The id of a token that the configuration names, as a string or as an object with its content.
int32_t configured(const JsonObject& config, const char* name, const Vocabulary& vocabulary) {
  Json value = config[name];
  if (value.is_object()) value = JsonObject(value, name)["content"];
  return value.is_string() ? vocabulary.find(value.string(name)) : kNoToken;
}

// As lite_runtime/text.py decides it.
void read_config(const Json& document, int32_t first_added, TokenizerParts* parts) {
  const JsonObject config(document, "the configuration");
  parts->bos = configured(config, "bos_token", parts->vocabulary);
  parts->eos = configured(config, "eos_token", parts->vocabulary);
  const Json& rule = config["add_bos_token"];
  parts->adds_bos = parts->bos != kNoToken &&
                    (rule.is_null() ? first_added == parts->bos : rule.boolean("add_bos_token"));
}

}  // namespace

TokenizerParts read_tokenizer(const Bundle& bundle) {
  if (!bundle.contains(kTokenizerName)) {
    throw Error(EK_ERR_NOT_SUPPORTED,
                bundle.label() + ": no tokenizer.json behind the tensors, so it takes token ids but no text. "
                                 "Expected a whole file of edge-kit export; one of paddle_lite_opt has none, "
                                 "and a cut download loses its end");
  }
  const std::string label = bundle.label() + ": " + kTokenizerName;
  TokenizerReader reader(Json::parse(bundle.read(kTokenizerName), label));
  TokenizerParts parts = reader.read();
  if (bundle.contains(kConfigName)) {
    const std::string config_label = bundle.label() + ": " + kConfigName;
    read_config(Json::parse(bundle.read(kConfigName), config_label), reader.first_added(), &parts);
  }
  return parts;
}

}  // namespace edge_kit
