#include "generation/generation_config.h"

#include <string>
#include <string_view>

#include "text/bpe.h"
#include "text/json.h"

namespace edge_kit {
namespace {

constexpr char kGeneration[] = "generation_config.json", kModel[] = "config.json";
constexpr char kManifest[] = "manifest.json";

// The members of a file of the bundle. Views of `bundle`, and of `label`, which the caller keeps.
class ConfigFile {
 public:
  ConfigFile(const Bundle& bundle, const char* name)
      : label_(bundle.label() + ": " + name),
        members_(bundle.contains(name) ? Json::parse(bundle.read(name), label_)
                                       : Json::parse("{}", label_), "the configuration") {}
  const Json& operator[](const char* name) const { return members_[name]; }

 private:
  const std::string label_;
  const JsonObject members_;
};

int32_t token_id(const Json& value) {
  const int64_t id = value.integer("eos_token_id");
  if (id < INT32_MIN || id > INT32_MAX) value.fail(EK_ERR_FORMAT, "eos_token_id is no token id");
  return static_cast<int32_t>(id);
}

std::vector<int32_t> token_ids(const Json& value) {
  if (!value.is_array()) return {token_id(value)};
  std::vector<int32_t> ids;
  value.each_element("eos_token_id", [&](const Json& id) { ids.push_back(token_id(id)); });
  return ids;
}

// As lite_runtime/generate.py decides it.
Sampling read_sampling(const ConfigFile& config) {
  const auto number = [&](const char* name, float off) {
    const Json& value = config[name];
    return value.is_null() ? off : static_cast<float>(value.number(name));
  };
  Sampling sampling;
  const Json& do_sample = config["do_sample"];
  const bool draws = !do_sample.is_null() && do_sample.boolean("do_sample");
  sampling.temperature = draws ? number("temperature", 1.0f) : 0.0f;
  sampling.top_p = number("top_p", 1.0f);
  sampling.min_p = number("min_p", 0.0f);
  sampling.repetition_penalty = number("repetition_penalty", 1.0f);
  const Json& top_k = config["top_k"];
  if (!top_k.is_null()) {
    const int64_t k = top_k.integer("top_k");
    if (k < 0 || k > INT32_MAX) {
      top_k.fail(EK_ERR_FORMAT, "top_k is " + std::to_string(k) + ", expected 0 to 2^31 - 1");
    }
    sampling.top_k = static_cast<int32_t>(k);
  }
  return sampling;
}

}  // namespace

GenerationConfig read_generation_config(const Bundle& bundle, int32_t eos) {
  const ConfigFile generation(bundle, kGeneration), model(bundle, kModel);
  GenerationConfig config;
  config.sampling = read_sampling(generation);
  const Json& limit = generation["max_new_tokens"];
  if (!limit.is_null()) {
    config.max_new_tokens = limit.integer("max_new_tokens");
    if (config.max_new_tokens < 1) {
      limit.fail(EK_ERR_FORMAT,
                 "max_new_tokens is " + std::to_string(config.max_new_tokens) + ", expected 1 or more");
    }
  }
  const Json& own = generation["eos_token_id"];
  const Json& found = own.is_null() ? model["eos_token_id"] : own;
  if (!found.is_null()) {
    config.end_tokens = token_ids(found);
  } else if (eos != kNoToken) {
    config.end_tokens = {eos};
  }
  return config;
}

int64_t read_context_limit(const Bundle& bundle) {
  for (const char* name : {kModel, kManifest}) {
    const ConfigFile file(bundle, name);
    const Json& limit = file["max_position_embeddings"];
    const std::string_view text = limit.text();
    // A whole number above 0, or the next file's.
    if (text == "0" || text.find_first_not_of("0123456789") != std::string_view::npos) continue;
    return text.size() > 18 ? INT64_MAX : limit.integer("max_position_embeddings");
  }
  return 0;
}

}  // namespace edge_kit
