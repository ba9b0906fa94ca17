/* SPDX-License-Identifier: Apache-2.0 */
/* Written by make_vectors.py; do not edit. */
static const char *const vllm_none_hash[] = {
    "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0"};
static const char *const vllm_block_1[] = {
    "493f37dcda994a276ed9f9f27341b870a0da995cb22a36dc0e43fbf55d0cd662",
    "1fbe266248df651bf1428a620eef14f7d3a6c8f172b919206baeda2d3ad9a463",
    "6350ca0e0a5f142c3405d4e3bb29a023cbd8916014c0abec10b17d1b4e1bb251",
    "08289d2533cc1fd51c800a18163f72a00dfafc42f43ce6872207bb0a95208d59",
    "bb063d12d4e53a65cab603c2a316ad23627eba671e1a3ac5959eddb2167116e1"};
static const char *const vllm_block_16[] = {
    "a12fc3b9f949739a548e4636778aa9b92c8381a265bceb372ae4b7062897aad1",
    "9224569d64fb24ed0fbcb2b5192ebb9f960e097eaee1b6672378265df43032b3",
    "59c9cd8bc92d8dc62e0bb110a3523ddbb24db2461640b4714273bcc417627858",
    "14f8dcc5a89d7fcf6914e94756688cf7f70684cebd660d9046af8627f688aefe",
    "aacd21bc5ba7dc5a3876878a9b4f925ccdcefb18bfbda5e53c7ceef28d4e46fb"};
static const char *const vllm_block_32[] = {
    "08d5e567b3284268ac0225072e3be11ec84dfcaae9874735ef54acdb8820f7d1",
    "6f9ea28ea02101d887b9048cbdcb4378cb164a01a74ff7f3461e546a9ca46b36",
    "fd226efb89c846e097e1f2beb402be40679e5101d667ee54072ef49ccb43474b",
    "9c7c407b940e5a2f25030d144ba48eccad177c3e475ca2d8d6cbf8fb17e0bff3",
    "692d6379009416bde623df1c22acca2f4638c21b65fa2573b76e8f730b06cb56"};
static const char *const vllm_block_300[] = {
    "2eea824c273970f4757fabd2b6f83ef9f45967e0e37b4892afbe69bec80af794",
    "211fc5f44b9941cf3bf77634023126672f026555e6bb3dd3b9325619f8adf0e0",
    "9949443cf0cede47537f63646cd9a455b4b23ad2a70736ba3a847f928aa59a92",
    "577320537641020d9102dd109423b3397255898e0e79b0a7a983602bd242e681",
    "3a2ef41c79df90f151675928a8d2ba825430c440e56689c19859003479709050"};
static const char *const vllm_extras[] = {
    "a12fc3b9f949739a548e4636778aa9b92c8381a265bceb372ae4b7062897aad1",
    "fb9b1298fa768322a9b59853fc3066e103612092e9c5a4f089c7d24343146862",
    "7836b0e8c675898df36e15dee9296aa4fb05663853e20789274900f5f70a4a0a",
    "ea95f4b91d1f2c00b3b2d25a54eee63caac389024a3e1eb0a846167038f3e6eb",
    "3176f9524e0915a123de673220f4eebbdb8b64f4fcb0235494ad29c4b008a84d"};
static const uint8_t vllm_extra_1[] = {0x82, 0x83, 0x62, 0x6d, 0x6d, 0x69, 0x70,
                                       0x69, 0x63, 0x74, 0x75, 0x72, 0x65, 0x2d,
                                       0x31, 0x22, 0x64, 0x6c, 0x6f, 0x72, 0x61};
static const uint8_t vllm_extra_3[] = {0x81, 0x64, 0x73, 0x61, 0x6c, 0x74};
static const char *const sha256_block_1[] = {
    "8a9b47845f5c70977aa6d7827df3925eb66caf457443fef845441bac403c40e4",
    "da8fe25bfdbbc7a0c370c1478d5feea402dca40b31234a9139b298f30bcf54c7",
    "4576811dfb52db0df74b535135866269830876934880cfbc8aba21bec2612627",
    "015d67614598ac8eb95facc3199427cbb01b5f1d51c28ae2160fdd1dcb508d7e",
    "cfd68cadbd95f4dfb7f63fb13f2a039f93eed295d27f8b7227566131f707eab0"};
static const char *const sha256_block_16[] = {
    "aff9fd255279bc7db104d0cad25a1c9088694dfebe059d74c2616aaa2a227194",
    "a8e72a63405e3962ced969b431ccf35e6aa283a10640900bb979010e575b9c3e",
    "eebf0e76ffe9d20cf416a728ad3564d2fceb1a11efda72c8cf63aae78a1ceb5d",
    "b54a032a94acf3008cbca75160621f476a5127e12562614641f531d38f68f24e",
    "652ee0d5a78ddc9ab991a304c464383c702050b70b471bbc4e73fdd90108f76d"};
static const char *const sha256_block_32[] = {
    "7a85038a3832241aa27260e938b8d6b31aa6434381710729483c3f91868aea87",
    "18a65760841013763f47707d246360ae56e3d6d1e84aa498290331e92bdaec90",
    "97eaeacd412419a650f43150029e7220363093535ece66fbc750a46ffd6b72b6",
    "c59bf4f7d517da9668f50b09f0d8f46bf3e9cbfee878ccecf9ab44754ea71f3b",
    "ef2571b6b41246c4def76fc1b64991bf1c39e6dc558a5986f497e6f8e6e9694a"};
static const char *const sha256_block_300[] = {
    "6bcfd1324aafb10e7e1699680bee19323fd91657160a6bd07c7667e19d1825cd",
    "c3c2568b266870c90c488bee349f99152710355e651653b99db2aa415358a8ae",
    "88e5e2a10aa837411e2cdfa1498d8e829960b770972e2d231d864a1fec3d9767",
    "822e82e40ad612dc92ac5f6711fa45dadfbcb22395f5605d4478b0e5a0fc6662",
    "5ca12cf4f41572159a62b4e598069dbe4c222ed2ee35e0e9f37f34b6b35805d0"};
static const char *const sha256_rooted_extras[] = {
    "09f39d9a4154ebc3becdbccaf4bc3affb5c853ef6a5b926f4e2d0f432dfe0587",
    "2e82571346e23a6fecd6bb32d3a725048b34b3cb3cd31a1abea1fb51c328ddad",
    "d76eb569f92bcea121c39dcc1c4761950d9eadf83cf3ef6d679565c30f4fcf5b",
    "4486dd7cca34ff2c36fc7cc988b2cb48e79e758ba15a2cd7186519eb01a74ba7",
    "02e43e19505ed5c1a2c424c4db3f017bac3a3979caf9c6f85388a2680e177ce3",
    "ab1bb99c01ddee4c1a888df6167abb08690973424734e9c482e1a19f3727624a"};
static const char *const xxh3_block_1[] = {
    "b6904e1c2bacbd287b178fc9046f44ed00000000000000000000000000000000",
    "777f93c134d1fa145b1e7747c9185d3600000000000000000000000000000000",
    "ff94cad7ade3b0827ef43571c84f324000000000000000000000000000000000",
    "56b5348c427678f60e92ecdfec3124fa00000000000000000000000000000000",
    "97ab332d26170a91d2a9f8c1c5e688bf00000000000000000000000000000000"};
static const char *const xxh3_block_16[] = {
    "63b5590f17cc145abf6d6c13e4ece5ae00000000000000000000000000000000",
    "75d532c69737caf5520cd47b64f73e0200000000000000000000000000000000",
    "24d78130aab7d5fa55b31883131a5b4a00000000000000000000000000000000",
    "ead583ced4a5070df3d6cae85a778d6e00000000000000000000000000000000",
    "835b11f12faa8c849d74625ef7f091bd00000000000000000000000000000000"};
static const char *const xxh3_block_32[] = {
    "4c25345fd777a1644e62723224a0b5df00000000000000000000000000000000",
    "277aa1549631bfd239a27fd736fe6a3200000000000000000000000000000000",
    "838f2c037959ed5bc3f1366d9a640f3800000000000000000000000000000000",
    "96e870a5f08fbb5dcf84fd948b5227bb00000000000000000000000000000000",
    "29ff4980e31309f2856825d2e8cf257000000000000000000000000000000000"};
static const char *const xxh3_block_300[] = {
    "541fccd3237cfba85ec307604493cae200000000000000000000000000000000",
    "274f451d3e251f6fbd2482b262c50f7c00000000000000000000000000000000",
    "bb7801b64460e47c5d2d4c5b56511f2900000000000000000000000000000000",
    "4ae87e2913a197595ce6b24bf41e0e6b00000000000000000000000000000000",
    "ceb737478f017d04d893ba067b7fe7d100000000000000000000000000000000"};
static const char *const xxh3_rooted_extras[] = {
    "79ce1f8eb60b6decb45f5efc7ebf49c67450eafbd805fbf81745afd631fa95ea",
    "41d53d3a89967a33fb124447b1003ff800000000000000000000000000000000",
    "3caafd7edc67264e967d758fa2e1bde500000000000000000000000000000000",
    "49ed51d47cdbd3a3523944100cadb0f000000000000000000000000000000000",
    "41fbba280b2bb00c056601ba85dbf99900000000000000000000000000000000",
    "1aaee2db4cc01d35dbbeb9f648d90d3000000000000000000000000000000000"};
static const char *const vllm_rooted_16[] = {
    "4871e84c22fff29e5377f5b8cf4318126ba35fefa1d682812c12e2f40f787da0",
    "5f48ad2b799d24749a728d94b833ceb901d25ac0143d74e61497067f37760046",
    "43e01286ca91d5bd78042e754d1120ba6b7c91906aedfcc36904fc4575dcef14",
    "c0a0fb6e088ac4a58a35de8cee08e9924b3d275b3e3e44d0868d75e28cce2efd",
    "74e4644e677b9d1b97ae68b45e0cb31ad970b4149de2b0e643da9d3e84687db9",
    "69fe16a336502d8bd250b512dc51f1b216e2715eafd2997a9b88d826a24271eb"};
static const struct tierce__lmcache_int lmcache_none_hash[] = {{0x9bd96a485ad84efdULL, false}};
static const struct tierce__lmcache_int lmcache_builtin_zero[] = {{0x9f3cd2c1c1b4f9dULL, false},
                                                                  {0x379425b6afeb4955ULL, false},
                                                                  {0x78fbfa8729cb23a1ULL, true},
                                                                  {0x4e0babfe285cce48ULL, true}};
static const struct tierce__lmcache_int lmcache_builtin_none[] = {{0x1c8b006f260a2614ULL, false},
                                                                  {0x6bc1575749d51f97ULL, false},
                                                                  {0x7f5e90626ab29baULL, false},
                                                                  {0x6b6dd2e29addfdd7ULL, false}};
static const struct tierce__lmcache_int lmcache_builtin_negative[] = {
    {0x1d98ef327f11054fULL, true},
    {0x369068cd4237e70fULL, true},
    {0x4e53df20737e80aeULL, false},
    {0x7a5bed9cebd6f6aaULL, true}};
static const struct tierce__lmcache_int lmcache_cbor_zero[] = {{0xb253d131aee252f2ULL, false},
                                                               {0x4ffa79246701d315ULL, false},
                                                               {0xcdef04a379ae1b81ULL, false},
                                                               {0xd003051d1ef5a2e5ULL, false}};
static const struct tierce__lmcache_int lmcache_cbor_none[] = {{0x4f7e56c5a095c37aULL, false},
                                                               {0xff2a0ce04b32bf57ULL, false},
                                                               {0x330a88cf3a654fe9ULL, false},
                                                               {0x1e595030fd03839dULL, false}};
static const struct tierce__lmcache_int lmcache_cbor_negative[] = {{0xcc257da71a518b60ULL, false},
                                                                   {0x3f8e2feb734efef7ULL, false},
                                                                   {0xbd980c266ef2a356ULL, false},
                                                                   {0xb91f35e22406359fULL, false}};
static const struct tierce__lmcache_int python_ints[] = {{0x0ULL, false},
                                                         {0x1ULL, false},
                                                         {0x1ULL, true},
                                                         {0x2ULL, true},
                                                         {0x1ffffffffffffffeULL, false},
                                                         {0x1fffffffffffffffULL, false},
                                                         {0x2000000000000000ULL, false},
                                                         {0x1fffffffffffffffULL, true},
                                                         {0x2000000000000000ULL, true},
                                                         {0x7fffffffffffffffULL, false},
                                                         {0x8000000000000000ULL, true},
                                                         {0xffffffffffffffffULL, false}};
static const int64_t python_int_hashes[] = {0,  1, -2, -2, 2305843009213693950, 0, 1, 0,
                                            -2, 3, -4, 7};
static const int64_t python_tuple_hashes[] = {5740354900026072187, -8753497827991233192,
                                              -1950498447580522560, 2187946392326065592,
                                              -8281178343658874797};
