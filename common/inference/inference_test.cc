// Translation of requests with a real tokenizer and template, and the pieces around it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "common/inference/generate_call.h"
#include "common/inference/step_fan_out.h"
#include "common/inference/translate.h"
#include "common/inference/wire_check.h"
#include "common/text/text_test_data.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

// What a worker with Qwen3's tokenizer sends; the way through ServedModelFromWorker is the test of
// it.
std::shared_ptr<const ServedModel> Qwen3() {
  static const std::shared_ptr<const ServedModel> model = [] {
    v1::GetTokenizerResponse response;
    response.mutable_model()->set_name("qwen3");
    response.mutable_model()->set_digest("d");
    response.mutable_model()->set_max_model_len(2000);
    response.mutable_model()->set_vocab_size(151936);
    response.mutable_model()->set_block_size(16);
    response.set_tokenizer_json(test::ReadData("tokenizer_qwen3/tokenizer.json.xz"));
    response.set_tokenizer_config_json(test::ReadData("tokenizer_qwen3/tokenizer_config.json"));
    response.mutable_defaults()->set_temperature(0.6);
    response.mutable_defaults()->set_top_k(20);
    response.set_cache_ttl_us(300'000'000);
    auto served = ServedModelFromWorker(response);
    EXPECT_TRUE(served.ok()) << served.status();
    return *served;
  }();
  return model;
}

v1::GenerateRequest ChatRequest(const std::vector<std::string>& contents) {
  v1::GenerateRequest request;
  for (size_t i = 0; i < contents.size(); ++i) {
    v1::Message* message = request.add_messages();
    message->set_role(i % 2 == 0 ? "user" : "assistant");
    message->set_content(contents[i]);
  }
  return request;
}

TEST(Translate, FillsDefaultsOfModelThenOfContract) {
  v1::GenerateRequest request;
  request.set_prompt("Hello world");
  absl::StatusOr<v1::Submit> submit = TranslateGenerate(request, *Qwen3(), {"salt", 99});
  ASSERT_TRUE(submit.ok()) << submit.status();
  EXPECT_FLOAT_EQ(submit->sampling().temperature(), 0.6f);  // generation_config
  EXPECT_EQ(submit->sampling().top_k(), 20);
  EXPECT_FLOAT_EQ(submit->sampling().top_p(), 1);  // contract
  EXPECT_EQ(submit->sampling().seed(), 99u);
  EXPECT_EQ(submit->sampling().n(), 1);
  EXPECT_FALSE(submit->sampling().has_logprobs());
  EXPECT_EQ(submit->prompt_ids_size(), 2);
  EXPECT_EQ(submit->sampling().max_tokens(), 1998);  // the rest of the length
  EXPECT_EQ(submit->salt(), "salt");
  EXPECT_TRUE(submit->read_prefix_cache());
  EXPECT_TRUE(submit->store_prefix());

  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_top_k(0);
  request.mutable_sampling()->set_seed(0);
  request.mutable_sampling()->set_prompt_logprobs(0);
  request.mutable_cache()->set_no_store(true);
  submit = TranslateGenerate(request, *Qwen3(), {"", 99});
  ASSERT_TRUE(submit.ok());
  EXPECT_EQ(submit->sampling().temperature(), 0);
  EXPECT_EQ(submit->sampling().top_k(), 0);
  EXPECT_EQ(submit->sampling().seed(), 0u);
  EXPECT_FALSE(submit->read_prefix_cache());
  EXPECT_FALSE(submit->store_prefix());
}

TEST(Translate, CacheableMessagesEndAPrefix) {
  v1::GenerateRequest request = ChatRequest({"What is a KV cache?", "A store.", "And a page?"});
  request.mutable_messages(0)->set_cacheable(true);
  absl::StatusOr<v1::Submit> submit = TranslateGenerate(request, *Qwen3(), {});
  ASSERT_TRUE(submit.ok()) << submit.status();
  const uint32_t one = submit->cacheable_tokens();
  EXPECT_EQ(submit->cacheable_ttl_us(), 300'000'000);
  // The prefix is the message as the template writes it: <|im_start|>user\n ... <|im_end|>\n
  const std::vector<int32_t> prefix =
      Qwen3()->tokenizer->Encode("<|im_start|>user\nWhat is a KV cache?<|im_end|>\n",
                                 {.add_special_tokens = false, .parse_special_tokens = true});
  EXPECT_EQ(one, prefix.size());
  request.mutable_messages(2)->set_cacheable(true);
  submit = TranslateGenerate(request, *Qwen3(), {});
  EXPECT_GT(submit->cacheable_tokens(), one);
  EXPECT_LT(submit->cacheable_tokens(), static_cast<uint32_t>(submit->prompt_ids_size()));
  request.mutable_cache()->set_ttl_seconds(7);
  EXPECT_EQ(TranslateGenerate(request, *Qwen3(), {})->cacheable_ttl_us(), 7'000'000);
  request.mutable_cache()->set_ttl_seconds(0);
  EXPECT_EQ(TranslateGenerate(request, *Qwen3(), {})->cacheable_tokens(), 0u);
}

TEST(Translate, TemplateArgumentsAndRolesReachTheTemplate) {
  v1::GenerateRequest request = ChatRequest({"Hi"});
  const int thinking = TranslateGenerate(request, *Qwen3(), {})->prompt_ids_size();
  (*request.mutable_template_args()->mutable_fields())["enable_thinking"].set_bool_value(false);
  EXPECT_GT(TranslateGenerate(request, *Qwen3(), {})->prompt_ids_size(), thinking);
  request.mutable_messages(0)->set_role("wizard");
  const absl::Status status = TranslateGenerate(request, *Qwen3(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("wizard"));
}

TEST(Translate, WithoutATokenizerOnlyIds) {
  v1::GetTokenizerResponse response;
  response.mutable_model()->set_name("bare");
  response.mutable_model()->set_vocab_size(10);
  response.mutable_model()->set_max_model_len(10);
  const auto bare = ServedModelFromWorker(response);
  ASSERT_TRUE(bare.ok());
  v1::GenerateRequest request;
  request.set_prompt("x");
  EXPECT_EQ(TranslateGenerate(request, **bare, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  request.clear_prompt();
  request.add_prompt_ids(9);
  EXPECT_TRUE(TranslateGenerate(request, **bare, {}).ok());
  request.mutable_sampling()->add_stop("end");
  EXPECT_EQ(TranslateGenerate(request, **bare, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(TokenizerSpec, SurvivesTheWire) {
  TokenizerSpec spec;
  spec.tokens = {"a", "b", "ab", std::string("\xff", 1)};
  spec.merges = {{"a", "b"}};
  spec.added_tokens = {{7, "<x>", true, true, false, true, false}};
  spec.pre_tokenizer = PreTokenizer::kLlama3;
  spec.nfc = true;
  spec.add_bos = true;
  spec.bos_id = 0;
  spec.chat_template = "{{ x }}";
  v1::TokenizerSpec wire;
  ASSERT_TRUE(wire.ParseFromString(TokenizerSpecToProto(spec).SerializeAsString()));
  const TokenizerSpec back = TokenizerSpecFromProto(wire);
  EXPECT_EQ(back.tokens, spec.tokens);
  EXPECT_EQ(back.merges, spec.merges);
  ASSERT_EQ(back.added_tokens.size(), 1u);
  EXPECT_EQ(back.added_tokens[0].id, 7);
  EXPECT_TRUE(back.added_tokens[0].lstrip);
  EXPECT_TRUE(back.added_tokens[0].single_word);
  EXPECT_EQ(back.pre_tokenizer, spec.pre_tokenizer);
  EXPECT_EQ(back.bos_id, spec.bos_id);
  EXPECT_FALSE(back.eos_id.has_value());
  EXPECT_EQ(back.chat_template, spec.chat_template);
}

TEST(TenantSalt, IsHmacSha256) {
  EXPECT_EQ(TenantSalt("", "a"), "");
  // RFC 4231, test case 2.
  const std::string salt = TenantSalt("Jefe", "what do ya want for nothing?");
  ASSERT_EQ(salt.size(), 32u);
  EXPECT_EQ(static_cast<unsigned char>(salt[0]), 0x5b);
  EXPECT_EQ(static_cast<unsigned char>(salt[31]), 0x43);
  EXPECT_NE(TenantSalt("secret", "a"), TenantSalt("secret", "b"));
}

TEST(FindInvalidUtf8, Table) {
  for (const char* good : {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_FALSE(FindInvalidUtf8(good).has_value()) << good;
  }
  for (const char* bad :
       {"\x80", "\xc1\xbf", "\xc2", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xe2\x82", "\xc2\x41"}) {
    EXPECT_EQ(FindInvalidUtf8(std::string("ab") + bad), 2u) << bad;
  }
}

TEST(ParseWire, RandomBytesNeverHarm) {
  std::mt19937_64 rng(1);
  v1::GenerateRequest request = ChatRequest({"one", "two", "three"});
  request.mutable_sampling()->add_stop("stop");
  (*request.mutable_template_args()->mutable_fields())["k"].set_string_value("v");
  const std::string good = request.SerializeAsString();
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = good;
    for (int j = 0; j < 3; ++j) bytes[rng() % bytes.size()] = static_cast<char>(rng());
    if (rng() % 4 == 0) bytes.resize(rng() % bytes.size());
    v1::GenerateRequest parsed;
    const absl::Status status = ParseWire(bytes, &parsed);
    EXPECT_TRUE(status.ok() || !status.message().empty());
  }
}

TEST(RetryAfter, TravelsInThePayload) {
  const absl::Status full = WithRetryAfter(absl::ResourceExhaustedError("full"), 1250);
  EXPECT_EQ(RetryAfterMs(full), 1250);
  EXPECT_EQ(RetryAfterMs(StatusFromProto(StatusToProto(full))), 1250);
  EXPECT_EQ(RetryAfterMs(absl::ResourceExhaustedError("full")), 0);
}

// A dispatcher that keeps what it is told.
class RecordingDispatcher final : public Dispatcher {
 public:
  absl::StatusOr<std::shared_ptr<const ServedModel>> FindModel(const std::string&) override {
    return Qwen3();
  }
  std::vector<std::shared_ptr<const ServedModel>> Models() override { return {Qwen3()}; }
  uint64_t NewRequestId() override { return 5; }
  absl::Status Submit(v1::Submit, std::shared_ptr<const ServedModel>,
                      std::shared_ptr<RequestSink> s) override {
    sink = std::move(s);
    return absl::OkStatus();
  }
  void Cancel(uint64_t, bool deadline_exceeded) override { cancels.push_back(deadline_exceeded); }
  void Consumed(uint64_t, uint32_t n) override { consumed += n; }

  std::shared_ptr<RequestSink> sink;
  std::vector<bool> cancels;
  uint32_t consumed = 0;
};

v1::Delta DeltaOf(uint32_t index, int num_tokens) {
  v1::Delta delta;
  delta.set_index(index);
  delta.set_text(std::string(static_cast<size_t>(num_tokens), 'x'));
  for (int i = 0; i < num_tokens; ++i) delta.add_token_ids(1);
  return delta;
}

class GenerateCallTest : public ::testing::Test {
 protected:
  GenerateCallTest() {
    front_.dispatcher = &dispatcher_;
    call_ = GenerateCall::Create(&front_, [this] { ++wakes_; });
    v1::GenerateRequest request;
    request.set_prompt("Hi");
    call_->Start(request, 0);
  }
  GenerateCall::Next Take() { return call_->TakeNext(&response_, &status_); }

  RecordingDispatcher dispatcher_;
  InferenceFront front_;
  int wakes_ = 0;
  std::shared_ptr<GenerateCall> call_;
  v1::GenerateResponse response_;
  absl::Status status_;
};

TEST_F(GenerateCallTest, JoinsWhatPilesUpAndGivesCreditsInLots) {
  EXPECT_EQ(Take(), GenerateCall::Next::kNothing);
  dispatcher_.sink->OnStarted({});
  for (int i = 0; i < 300; ++i) {
    dispatcher_.sink->OnDelta(DeltaOf(0, 1));
    dispatcher_.sink->OnDelta(DeltaOf(1, 1));
  }
  dispatcher_.sink->OnEnd(absl::OkStatus(), {});
  EXPECT_EQ(wakes_, 602);
  ASSERT_EQ(Take(), GenerateCall::Next::kMessage);
  EXPECT_TRUE(response_.has_started());
  EXPECT_FALSE(response_.started().request_id().empty());
  call_->Delivered();
  ASSERT_EQ(Take(), GenerateCall::Next::kMessage);
  EXPECT_EQ(response_.delta().token_ids_size(), 300);  // all of choice 0 in one
  EXPECT_EQ(response_.delta().text().size(), 300u);
  call_->Delivered();
  EXPECT_EQ(dispatcher_.consumed, 0u);  // it has ended: nobody waits for credits
  ASSERT_EQ(Take(), GenerateCall::Next::kMessage);
  EXPECT_EQ(response_.delta().index(), 1u);
  ASSERT_EQ(Take(), GenerateCall::Next::kMessage);
  EXPECT_TRUE(response_.has_finished());
  ASSERT_EQ(Take(), GenerateCall::Next::kEnd);
  EXPECT_TRUE(status_.ok());
}

TEST_F(GenerateCallTest, CreditsComeBackAsTheClientTakes) {
  for (int i = 0; i < 10; ++i) {
    dispatcher_.sink->OnDelta(DeltaOf(0, 100));
    ASSERT_EQ(Take(), GenerateCall::Next::kMessage);
    call_->Delivered();
  }
  EXPECT_EQ(dispatcher_.consumed, 900u);  // in lots of at least 256
}

TEST_F(GenerateCallTest, JoinedDeltasStayBelowAMessagesLimit) {
  for (int i = 0; i < 100; ++i) {
    v1::Delta delta = DeltaOf(0, 64);
    for (int j = 0; j < 64; ++j) {
      v1::TokenLogprobs* logprobs = delta.add_logprobs();
      for (int k = 0; k < 20; ++k) {
        logprobs->add_top()->set_token_id(150000);
        logprobs->mutable_top(k)->set_logprob(-1.5f);
      }
    }
    dispatcher_.sink->OnDelta(delta);
  }
  int tokens = 0;
  while (Take() == GenerateCall::Next::kMessage) {
    EXPECT_LT(response_.ByteSizeLong(), size_t{1} << 20);
    tokens += response_.delta().token_ids_size();
  }
  EXPECT_EQ(tokens, 6400);
}

TEST_F(GenerateCallTest, CancelDropsWhatIsPendingAndEndsOnce) {
  dispatcher_.sink->OnDelta(DeltaOf(0, 10));
  call_->Cancel(true);
  call_->Cancel(false);
  dispatcher_.sink->OnDelta(DeltaOf(0, 10));
  dispatcher_.sink->OnEnd(absl::OkStatus(), {});
  EXPECT_EQ(dispatcher_.cancels, std::vector<bool>{true});
  ASSERT_EQ(Take(), GenerateCall::Next::kEnd);
  EXPECT_EQ(status_.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(GenerateCallTest, ADrainingFrontRefuses) {
  front_.draining.store(true);
  v1::GenerateRequest request;
  request.set_prompt("Hi");
  const absl::Status status =
      RunGenerate(&front_, request, 0, [](const v1::GenerateResponse&) { return true; });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace quire
